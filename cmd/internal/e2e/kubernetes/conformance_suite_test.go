//go:build linux

package kubernetes

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/cascadeinfer/cascade/cmd/internal/childprocess"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/clustertest"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/kubetest"
)

// built are the files that "make conformance" builds.
type built struct {
	suite, echo, pilot string
	definitions        []string // folders of CustomResourceDefinitions
}

// findBuilt returns them, and skips the test without.
func findBuilt(t *testing.T) built {
	t.Helper()
	cache := conformanceCache(t)
	b := built{suite: pilotBinary(t, cache, "suite.test"), echo: pilotBinary(t, cache, "echo-basic"), pilot: pilotBinary(t, cache, "pilot-discovery")}
	b.definitions = testkit.Must(filepath.Glob(filepath.Join(cache, "definitions", "*")))
	return b
}

// conformanceCluster is an API server with Istio, and Pods that run on this host.
type conformanceCluster struct {
	*testing.T
	built
	dir     string
	envoy   string
	network *clustertest.Network
	server  *kubetest.Server
	api     kubernetes.Interface
	forward string // the address at which Pods reach the API server

	mu      sync.Mutex
	pickers map[string]*clustertest.Namespace // by the names of their Pods; guarded by mu
}

// TestSuite runs the suite, whose results must be those of docs/conformance.md.
func TestSuite(t *testing.T) {
	testkit.SkipSlow(t)
	files, envoy := findBuilt(t), envoytest.Binary(t)
	kubetest.Binary(t)
	if !clustertest.Isolate(t, harness.Variable+"="+cascade) {
		return
	}
	c := &conformanceCluster{T: t, built: files, dir: t.TempDir(), envoy: envoy, pickers: make(map[string]*clustertest.Namespace)}
	c.network = testkit.Must(clustertest.NewNetwork(netip.MustParsePrefix("10.244.0.0/16")))
	c.server = kubetest.Start(t)
	c.api = testkit.Must(kubernetes.NewForConfig(clustertest.ClientConfig(c.server)))
	c.forward = c.forwardTo(c.server.Address)
	for _, folder := range c.definitions {
		applyDefinitions(t, c.api, folder)
	}
	applyManifest(t, c.api, testkit.Must(os.ReadFile("testdata/objects.yaml")))
	startPilot(t, pilotConfig{Binary: c.pilot, Dir: filepath.Join(c.dir, "pilot"), Kubeconfig: c.kubeconfig("pilot", c.server.Address, ""), Host: c.network.Host(), Log: c.logFile("pilot")})
	pods := testkit.Must(clustertest.New(clustertest.Config{
		Client: c.api, RunPod: clustertest.RunStarted(c.startPod), Address: c.network.Address, Host: c.network.Host(), Logger: slog.New(slog.NewTextHandler(c.logFile("cluster"), nil)),
	}))
	testkit.Run(t, pods.Run)
	results := c.runSuite()
	if len(suiteArgs()) > 0 {
		for _, r := range results {
			if !r.passed && !strings.HasPrefix(r.detail, "skip") {
				t.Errorf("%s: %s", r.test, r.detail)
			}
		}
		return
	}
	c.checkPickers()
	compareReport(t, results, envoyVersion(c.output(exec.Command(envoy, "--version"))))
}

// runSuite runs the suite and returns its result.
func (c *conformanceCluster) runSuite() []result {
	c.Helper()
	admin := c.kubeconfig("admin", c.server.Address, "")
	cmd := exec.Command(c.suite, append([]string{"-test.v", "-test.timeout=25m", "-gateway-class=istio", "-cleanup-base-resources=false",
		"-organization=cascadeinfer", "-project=cascade", "-url=https://github.com/cascadeinfer/cascade", "-version=devel", "-contact=none",
		"-report-output=" + filepath.Join(c.dir, "report.yaml")}, suiteArgs()...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+admin)
	out := &testkit.Log{}
	cmd.Stdout, cmd.Stderr = io.MultiWriter(out, c.logFile("suite")), out
	cmd.SysProcAttr = childprocess.DieWithParent()
	err := cmd.Run()
	results := parseResults(bufio.NewScanner(bytes.NewReader([]byte(out.String()))))
	if len(results) == 0 {
		c.Fatalf("the suite ended with %v and no result:\n%s", err, tail(out.String()))
	}
	c.Logf("the suite's report:\n%s", testkit.Must(os.ReadFile(filepath.Join(c.dir, "report.yaml"))))
	return results
}

// checkPickers fails the test unless the gateways have asked every picker, and logs how often.
func (c *conformanceCluster) checkPickers() {
	c.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pickers) != 3 {
		c.Errorf("there are %d pickers, want one for each of the suite's 3 pools", len(c.pickers))
	}
	for name, ns := range c.pickers {
		text := c.output(ns.Command("python3", "-c", `import urllib.request; print(urllib.request.urlopen("http://127.0.0.1:9090/metrics").read().decode())`))
		var counts []string
		for line := range strings.Lines(text) {
			if line, ok := strings.CutPrefix(line, "cascade_endpoint_picker_requests_total"); ok && !strings.HasSuffix(line, " 0\n") {
				counts = append(counts, strings.TrimSpace(line))
			}
		}
		c.Logf("%s: %s", name, strings.Join(counts, " "))
		if !strings.Contains(strings.Join(counts, " "), `{outcome="picked"}`) {
			c.Errorf("the picker %s has picked nothing", name)
		}
	}
}

// envoyVersion returns the version in what "envoy --version" prints.
func envoyVersion(text string) string {
	for part := range strings.SplitSeq(text, "/") {
		if strings.Count(part, ".") == 2 && strings.Trim(part, "0123456789.") == "" {
			return part
		}
	}
	return strings.TrimSpace(text)
}

// suiteArgs are further arguments of the suite, such as -run-test=NAME to run one test.
func suiteArgs() []string {
	if one := os.Getenv("CASCADE_CONFORMANCE_TEST"); one != "" {
		return []string{"-run-test=" + one}
	}
	return nil
}

// kubeconfig writes a file that says how to reach the API server at an address, as a user who may do
// everything, or as another one.
func (c *conformanceCluster) kubeconfig(name, address, as string) string {
	c.Helper()
	path, err := c.writeKubeconfig(name, address, as)
	testkit.NoError(c, err)
	return path
}

// writeKubeconfig is kubeconfig for goroutines other than the test's.
func (c *conformanceCluster) writeKubeconfig(name, address, as string) (path string, err error) {
	path = filepath.Join(c.dir, name+".kubeconfig")
	return path, writeKubeconfig(path, c.server, address, as)
}

// forwardTo forwards connections from the Pods to an address of loopback, and returns where.
func (c *conformanceCluster) forwardTo(address string) string {
	c.Helper()
	l, err := net.Listen("tcp", netip.AddrPortFrom(c.network.Host(), 0).String())
	testkit.NoError(c, err)
	var group sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	c.Cleanup(func() { cancel(); l.Close(); group.Wait() })
	group.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer in.Close()
				out, err := net.Dial("tcp", address)
				if err != nil {
					return
				}
				defer out.Close()
				defer context.AfterFunc(ctx, func() { in.Close(); out.Close() })()
				group.Go(func() { _, _ = io.Copy(out, in); out.Close() })
				_, _ = io.Copy(in, out)
			})
		}
	})
	return l.Addr().String()
}

// output runs a command, which must succeed.
func (c *conformanceCluster) output(cmd *exec.Cmd) string {
	c.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// logFile returns the file that a program's output is written to: in $CASCADE_CONFORMANCE_LOGS,
// otherwise in the folder of the test.
func (c *conformanceCluster) logFile(name string) *os.File {
	c.Helper()
	f, err := c.openLog(name)
	testkit.NoError(c, err)
	return f
}

// openLog is logFile for goroutines other than the test's.
func (c *conformanceCluster) openLog(name string) (*os.File, error) {
	dir := c.dir
	if d := os.Getenv("CASCADE_CONFORMANCE_LOGS"); d != "" {
		dir = d
	}
	f, err := os.Create(filepath.Join(dir, name+".log"))
	if err == nil {
		c.Cleanup(func() { f.Close() })
	}
	return f, err
}

// tail returns the end of a text.
func tail(text string) string { return text[max(0, len(text)-8192):] }
