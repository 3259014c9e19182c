package kubernetes

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/template"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// chartSteady is the cost of the engines: 10 ms per token.
var chartSteady = steadyProfile(0.01)

// pod plays a Pod: its files, its environment, and addresses of loopback, one that others reach it at
// and one that stands for its own 127.0.0.1.
type pod struct {
	dir      string
	ip, own  string
	env      map[string]string
	template object // spec of the template
}

// newPods returns Pods by the templates of objects. Their addresses are free, also for listeners at
// the ports that are fixed in the manifests.
func newPods(t *testing.T, names []string, templates []object) []*pod {
	t.Helper()
	base := fmt.Sprintf("127.%d.%d.", 1+rand.IntN(254), rand.IntN(256))
	var out []*pod
	for i, name := range names {
		dir, err := os.MkdirTemp("", "pod") // short: it has Unix sockets
		testkit.NoError(t, err)
		t.Cleanup(func() { os.RemoveAll(dir) })
		for _, volume := range []string{"var", "run"} {
			testkit.NoError(t, os.Mkdir(filepath.Join(dir, volume), 0o770))
		}
		p := &pod{dir: dir, ip: fmt.Sprint(base, 1+i), own: fmt.Sprint(base, 101+i), template: templates[i]}
		p.env = map[string]string{"POD_NAME": name, "POD_UID": fmt.Sprint("u", i), "POD_IP": p.ip, "NODE_NAME": fmt.Sprint("node-", i)}
		for _, address := range []string{p.ip + ":18000", p.ip + ":9000", p.ip + ":9100", p.own + ":18001", p.own + ":9200", p.own + ":8000"} {
			l, err := net.Listen("tcp", address)
			testkit.NoError(t, err)
			l.Close()
		}
		out = append(out, p)
	}
	return out
}

// place returns text of a manifest as it applies to this Pod on one host: paths below its folder, and its
// own loopback.
func (p *pod) place(text string) string {
	return strings.NewReplacer("/etc/cascade", p.dir+"/etc", "/var/lib/cascade", p.dir+"/var", "/run/cascade", p.dir+"/run", "127.0.0.1", p.own).Replace(text)
}

// mount writes the files of a ConfigMap and the certificate of an identity.
func (p *pod) mount(t *testing.T, config object, cert, key, ca string) {
	t.Helper()
	files := map[string]string{}
	for name, text := range config["data"].(map[string]any) {
		files["fleet/"+name] = p.place(text.(string))
	}
	for name, path := range map[string]string{"tls.crt": cert, "tls.key": key, "ca.crt": ca} {
		files["tls/"+name] = string(testkit.Must(os.ReadFile(path)))
	}
	for name, text := range files {
		path := filepath.Join(p.dir, "etc", name)
		testkit.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		testkit.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
}

// id returns the id of the Pod's replica.
func (p *pod) id() string { return p.env["POD_NAME"] + "." + p.env["POD_UID"] }

// listReplicas returns a file of values with Pods as the replicas of the fleet, as kubectl writes it by
// deploy/kubernetes/replicas.gotemplate.
func listReplicas(t *testing.T, pods []*pod) string {
	t.Helper()
	list := map[string]any{}
	for _, p := range pods {
		items, _ := list["items"].([]any)
		list["items"] = append(items, map[string]any{
			"metadata": map[string]any{"name": p.env["POD_NAME"], "uid": p.env["POD_UID"]}, "spec": map[string]any{"nodeName": p.env["NODE_NAME"]}, "status": map[string]any{"podIP": p.ip},
		})
	}
	replicas := testkit.Must(os.Create(filepath.Join(t.TempDir(), "replicas.yaml")))
	testkit.NoError(t, testkit.Must(template.ParseFiles(filepath.Join(root, "deploy/kubernetes/replicas.gotemplate"))).Execute(replicas, list))
	testkit.NoError(t, replicas.Close())
	return replicas.Name()
}

// certificates are those of the components of a fleet.
type certificates struct {
	ca     string                                // file
	byName map[string]struct{ Cert, Key string } // files
}

// issueCertificates issues the certificates that flags of "cascade tls" name.
func issueCertificates(t *testing.T, names ...string) certificates {
	t.Helper()
	dir := t.TempDir()
	var issued struct{ Issued []struct{ Cert, Key string } }
	testkit.NoError(t, json.Unmarshal([]byte(harness.Command{Binary: cascade, Args: append([]string{"tls", "--json", "--out", dir, "--trust-domain", "cluster.local"}, names...)}.Output(t)), &issued))
	out := certificates{filepath.Join(dir, "ca.pem"), map[string]struct{ Cert, Key string }{}}
	for _, c := range issued.Issued {
		out.byName[filepath.Base(filepath.Dir(c.Cert))] = c
	}
	return out
}

// mount writes the files of a ConfigMap and the certificate of a name into a Pod.
func (c certificates) mount(t *testing.T, p *pod, name string, config object) {
	t.Helper()
	files, ok := c.byName[name]
	if !ok {
		t.Fatalf("no certificate of %s", name)
	}
	p.mount(t, config, files.Cert, files.Key, c.ca)
}

// reference matches $(NAME), which the kubelet replaces in arguments.
var reference = regexp.MustCompile(`\$\(([A-Z_]+)\)`)

// container returns a container of the Pod.
func (p *pod) container(t *testing.T, list, name string) object {
	t.Helper()
	for _, c := range p.template[list].([]any) {
		if o := object(c.(map[string]any)); o.text("name") == name {
			return o
		}
	}
	t.Fatalf("no container %s in %s", name, list)
	return nil
}

// run starts a container as a process, with its arguments and the environment that its manifest gives it.
func (p *pod) run(t *testing.T, c object) *harness.Daemon {
	t.Helper()
	var args, env []string
	for _, v := range c["env"].([]any) {
		name := object(v.(map[string]any)).text("name")
		value, ok := p.env[name]
		if !ok {
			t.Fatalf("the test has no value for the variable %s of %s", name, c.text("name"))
		}
		env = append(env, name+"="+value)
	}
	for _, a := range c["args"].([]any) {
		args = append(args, p.place(reference.ReplaceAllStringFunc(a.(string), func(r string) string { return p.env[r[2:len(r)-1]] })))
	}
	return harness.Command{Binary: cascade, Args: args, Env: env}.Start(t)
}

// replica is a running Pod with an engine and its migrator.
type replica struct{ engine, migrator *harness.Daemon }

// runReplica starts the engine and the migrator of a Pod whose files are mounted.
func (p *pod) runReplica(t *testing.T, plane *pod) replica {
	t.Helper()
	migrator := p.container(t, "initContainers", "cascade-migrator")
	args := migrator["args"].([]any)
	for i, a := range args { // the Service's name
		args[i] = strings.ReplaceAll(a.(string), "--control=cascade:", "--control="+plane.ip+":")
	}
	return replica{
		migrator: p.run(t, migrator),
		engine:   harness.Command{Binary: cascade, Args: []string{"engine", "-c", filepath.Join(p.dir, "etc", "fleet", "fleet.yaml"), "--replica", p.id()}, Env: p.environment()}.Start(t),
	}
}

// environment returns the variables that fleet files name.
func (p *pod) environment() (env []string) {
	for name, value := range p.env {
		env = append(env, name+"="+value)
	}
	return env
}

// findObject returns the object of a kind and name.
func findObject(t *testing.T, text, kind, name string) object {
	t.Helper()
	for _, o := range objects(t, text) {
		if o.text("kind") == kind && o.text("metadata", "name") == name {
			return o
		}
	}
	t.Fatalf("no %s %s", kind, name)
	return nil
}

// podSpec returns the spec of an object's Pods.
func podSpec(o object) object {
	return o.field("spec", "template", "spec")
}

// TestDeletedPod runs the chart's control plane and two Pods of engines with the sidecar as processes, with
// the arguments, environments, fleet files and hook of the manifests. A Pod is deleted as the kubelet deletes it: the
// hook, then SIGTERM for the engine, then for the migrator. The stream that a client reads through it has every token.
func TestDeletedPod(t *testing.T) {
	values := filepath.Join(t.TempDir(), "values.yaml")
	testkit.NoError(t, os.WriteFile(values, []byte(fmt.Sprintf("fleet: {models: [{name: %s, context: 16384, profile: steady.json}]}\nfleetFiles: {steady.json: %q}\n", harness.Model, chartSteady)), 0o600))
	sidecar := podSpec(findObject(t, kustomize(t, "deploy/kubernetes/example"), "Deployment", "llama"))
	control := podSpec(findObject(t, render(t, "--values", values), "StatefulSet", "cascade"))
	pods := newPods(t, []string{"cascade-0", "llama-a", "llama-b"}, []object{control, sidecar, sidecar})
	plane, engines := pods[0], pods[1:]

	text := render(t, "--values", values, "--values", listReplicas(t, engines))

	certificates := issueCertificates(t, "--control", "cascade-0", "--migrator", engines[0].id(), "--migrator", engines[1].id())
	mount := func(p *pod, name, config string) {
		certificates.mount(t, p, name, findObject(t, text, "ConfigMap", config))
	}
	mount(plane, "cascade-0", "cascade")
	plane.run(t, plane.container(t, "containers", "control"))

	var running []replica
	for _, p := range engines {
		mount(p, p.id(), "cascade-migrator")
		running = append(running, p.runReplica(t, plane))
	}

	leaving := engines[0]
	clients := newClients(t, chartSteady, "http://"+leaving.ip+":9000", "http://"+plane.own+":18001")
	clients.WaitFor("both replicas to be healthy", func() bool {
		status, err := clients.Get(clients.Admin + "/status")
		return err == nil && strings.Count(status, `"health": "healthy"`) == 2
	})
	admin := "http://" + leaving.own + ":9200"
	atEngine := func() int {
		metrics, err := clients.Get(admin + "/metrics")
		m := regexp.MustCompile(`(?m)^cascade_migrator_running\{.*\} (\d+)$`).FindStringSubmatch(metrics)
		if err != nil || m == nil {
			t.Fatalf("no number of running requests: %v\n%s", err, metrics)
		}
		return testkit.Must(strconv.Atoi(m[1]))
	}
	clients.WaitFor("the migrator to serve", func() bool { _, err := clients.Get(admin + "/readyz"); return err == nil })
	var streams []*harness.Stream
	for seed := 1; len(streams) == 0 || atEngine() == 0; seed++ { // the migrator may start a request at the other engine
		streams = append(streams, clients.Stream(harness.Prompt(seed, 400, 2000)))
	}

	hook := leaving.container(t, "containers", "vllm").field("lifecycle", "preStop", "exec")["command"].([]any)
	cmd := exec.Command(hook[0].(string), hook[1].(string), leaving.place(hook[2].(string)))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("preStop hook: %v\n%s", err, out)
	}
	if n := atEngine(); n > 0 {
		t.Errorf("the hook ended, and the engine still has %d requests", n)
	}
	clients.WaitForGrowth(streams) // the hook has not waited for their ends
	running[0].engine.Stop()
	running[0].migrator.Signal(syscall.SIGTERM)
	for _, s := range streams {
		testkit.NoError(t, s.Whole())
	}
	running[0].migrator.Wait()
	// The rest of the fleet serves on.
	clients.DataPlane = "http://" + engines[1].ip + ":9000"
	testkit.NoError(t, clients.Stream(harness.Prompt(2, 200, 10)).Whole())
}

// TestRenderedArguments: the arguments of the chart's containers are flags of their commands.
func TestRenderedArguments(t *testing.T) {
	all := renderings(t)
	kube := testkit.Must(cascadeKube())
	found := map[string]int{}
	for name, text := range all {
		for _, o := range objects(t, text) {
			pod := podSpec(o)
			for _, c := range append(listOf(pod["initContainers"]), listOf(pod["containers"])...) {
				c := object(c.(map[string]any))
				binary := cascade
				if strings.Contains(c.text("image"), "/cascade-kube") {
					binary = kube
				}
				var args []string
				for _, a := range listOf(c["args"]) {
					args = append(args, a.(string))
				}
				if len(args) == 0 {
					continue // a container of the user
				}
				if out, err := exec.Command(binary, append(args, "--help")...).CombinedOutput(); err != nil || strings.Contains(string(out), "unknown command") {
					t.Errorf("values %q: %v: %s: %v\n%s", name, o, strings.Join(args, " "), err, out)
				}
				found[args[0]]++
			}
		}
	}
	if found["control"] == 0 || found["epp"] == 0 || found["discover"] == 0 {
		t.Errorf("found %v", found)
	}
}
