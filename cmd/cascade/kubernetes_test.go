package main

import (
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/control"
)

// manifest is what is read of a Kubernetes object that has Pods or a fleet file.
type manifest struct {
	Kind     string                `yaml:"kind"`
	Metadata struct{ Name string } `yaml:"metadata"`
	Data     map[string]string     `yaml:"data"`
	Spec     struct {
		Template struct {
			Spec struct {
				Grace      int                 `yaml:"terminationGracePeriodSeconds"`
				Init       []manifestContainer `yaml:"initContainers"`
				Containers []manifestContainer `yaml:"containers"`
			} `yaml:"spec"`
		} `yaml:"template"`
	} `yaml:"spec"`
}

// manifestContainer is what is read of a container.
type manifestContainer struct {
	Name, Image string
	Args        []string
	Ports       []struct {
		Name          string `yaml:"name"`
		ContainerPort int    `yaml:"containerPort"`
	}
	Lifecycle struct {
		PreStop struct {
			Exec struct{ Command []string }
		} `yaml:"preStop"`
	}
}

// containers returns those of the manifest's Pods.
func (m manifest) containers() []manifestContainer {
	return slices.Concat(m.Spec.Template.Spec.Init, m.Spec.Template.Spec.Containers)
}

// manifests returns the objects of deploy/kubernetes and deploy/kustomize by file; each file is valid YAML.
func manifests(t *testing.T) map[string][]manifest {
	t.Helper()
	out := make(map[string][]manifest)
	for _, folder := range []string{"kubernetes", "kustomize"} {
		dir := filepath.Join("..", "..", "deploy", folder)
		testkit.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" || d.Name() == "fleet.yaml" {
				return err
			}
			for doc := range strings.SplitSeq("\n"+string(testkit.Must(os.ReadFile(path))), "\n---\n") {
				var m manifest
				if err := yaml.Unmarshal([]byte(doc), &m); err != nil {
					return fmt.Errorf("%s: %w", path, err)
				}
				out[path] = append(out[path], m)
			}
			return nil
		}))
	}
	return out
}

// TestKubernetesArguments: the arguments of each container with Cascade's image are valid for its command, and its Pod
// has the time to drain.
func TestKubernetesArguments(t *testing.T) {
	found := make(map[string]bool)
	for path, all := range manifests(t) {
		for _, m := range all {
			for _, c := range m.containers() {
				if !strings.Contains(c.Image, "/cascadeinfer/") || len(c.Args) == 0 {
					continue
				}
				command, rest, err := newRoot(&settings{}).Find(c.Args)
				if err == nil && !command.Runnable() {
					err = fmt.Errorf("%q is no command", c.Args[0])
				}
				if err == nil {
					err = command.ParseFlags(rest)
				}
				if err == nil {
					err = command.ValidateArgs(command.Flags().Args())
				}
				if err != nil {
					t.Errorf("%s: %s %s: %v", path, m.Kind, m.Metadata.Name, err)
					continue
				}
				found[command.Name()] = true
				if drain := command.Flags().Lookup("drain"); drain != nil {
					if grace := time.Duration(m.Spec.Template.Spec.Grace) * time.Second; grace <= testkit.Must(time.ParseDuration(drain.Value.String())) {
						t.Errorf("%s: %s %s is killed after %v, and drains for %v", path, m.Kind, m.Metadata.Name, grace, drain.Value)
					}
				}
				checkPorts(t, path, command, c)
			}
		}
	}
	if !found["control"] || !found["migrator"] {
		t.Errorf("found containers of %v", found)
	}
}

// checkPorts checks that what a container listens on by default is what its ports say.
func checkPorts(t *testing.T, path string, command *cobra.Command, c manifestContainer) {
	t.Helper()
	port := func(address string) int {
		_, text, err := net.SplitHostPort(address)
		testkit.NoError(t, err)
		return testkit.Must(strconv.Atoi(text))
	}
	example := testkit.Must(config.Read(strings.NewReader(config.Example)))
	want := map[string]int{"xds": port(example.Control.Listen), "clients": port(example.Replicas[0].Address), "peers": port(example.Replicas[0].Peer)}
	if f := command.Flags().Lookup("metrics"); f != nil && f.Value.String() != "" {
		want["metrics"] = port(f.Value.String())
	}
	for _, p := range c.Ports {
		if p.ContainerPort != want[p.Name] {
			t.Errorf("%s: container %s: port %s is %d, want %d", path, c.Name, p.Name, p.ContainerPort, want[p.Name])
		}
	}
}

// TestKubernetesFleetFiles: the fleet files of the manifests start the daemons that mount them.
func TestKubernetesFleetFiles(t *testing.T) {
	for name, value := range map[string]string{"POD_NAME": "llama-0", "POD_UID": "9f2c", "POD_IP": "10.0.0.21", "NODE_NAME": "node-a", "NODE_IP": "fd00::7"} {
		t.Setenv(name, value)
	}
	texts := map[string]string{"daemonset": string(testkit.Must(os.ReadFile(filepath.Join("..", "..", "deploy", "kubernetes", "daemonset", "fleet.yaml"))))}
	for path, all := range manifests(t) {
		for _, m := range all {
			if text, ok := m.Data["fleet.yaml"]; ok {
				texts[path+" "+m.Metadata.Name] = text
			}
		}
	}
	if len(texts) < 3 {
		t.Errorf("found %d fleet files", len(texts))
	}
	for name, text := range texts {
		path := filepath.Join(t.TempDir(), "fleet.yaml")
		testkit.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		if _, err := config.Load(path); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestKubernetesPreStop runs the hook of the sidecar's engine against migrators that drain, that end meanwhile, that
// refuse and that do not answer in time.
func TestKubernetesPreStop(t *testing.T) {
	python := testkit.Tool(t, "python3")
	m := manifests(t)[filepath.Join("..", "..", "deploy", "kubernetes", "sidecar", "migrator.yaml")][0]
	hook := m.Spec.Template.Spec.Containers[0].Lifecycle.PreStop.Exec.Command
	if len(hook) != 3 || hook[0] != "python3" || !strings.Contains(hook[2], "http://127.0.0.1:9200/drain") || !strings.Contains(hook[2], "timeout=10)") {
		t.Fatalf("hook %q", hook)
	}
	const slow = -1 // no answer until the hook gives up
	for name, tt := range map[string]struct {
		answers []int
		asked   int32
		code    int
	}{
		"drained":  {[]int{http.StatusAccepted, http.StatusOK}, 2, 0},
		"idle":     {[]int{http.StatusOK}, 1, 0},
		"ended":    {[]int{http.StatusAccepted, 0}, 2, 0},
		"refusing": {[]int{http.StatusForbidden}, 1, 1},
		"slow":     {[]int{slow, http.StatusAccepted, http.StatusOK}, 3, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n := asked.Add(1)
				status := tt.answers[min(int(n), len(tt.answers))-1]
				if r.Method != http.MethodPost || r.URL.Path != "/drain" || r.Header.Get(control.AdminHeader) == "" {
					status = http.StatusForbidden
				}
				if status == slow {
					<-r.Context().Done()
					return
				}
				if status == 0 {
					panic(http.ErrAbortHandler)
				}
				w.WriteHeader(status)
			}))
			defer srv.Close()
			cmd := exec.Command(python, hook[1], strings.NewReplacer("http://127.0.0.1:9200", srv.URL, "timeout=10", "timeout=0.3").Replace(hook[2]))
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != tt.code || asked.Load() != tt.asked {
				t.Errorf("exit code %d after %d questions, want %d after %d\n%s", code, asked.Load(), tt.code, tt.asked, out)
			}
		})
	}
}
