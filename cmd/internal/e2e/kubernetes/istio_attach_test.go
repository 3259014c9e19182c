package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/cascadeinfer/cascade/cmd/internal/childprocess"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/clustertest"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/kubetest"
	"github.com/cascadeinfer/cascade/xds/store"
)

// The addresses of the test's network namespace besides loopback, which the API server takes for no Pod's.
var (
	host       = netip.MustParseAddr("10.244.0.1") // Istio's control plane, and the owner's server
	gatewayPod = netip.MustParseAddr("10.244.0.2") // the gateway
)

// TestAttach hands the routes of a listener of an Istio gateway over to Cascade, moves a boundary, and takes them back,
// all under load: no request fails, each is served as the step before or the present one wants, and the gateway's
// other listener is not affected.
//
// A connection from before a step may carry one more request by the former routes, whose answer closes it.
func TestAttachIstio(t *testing.T) {
	testkit.SkipSlow(t)
	testkit.SkipUnderRace(t) // it tests other processes
	cache := conformanceCache(t)
	pilot, envoy := pilotBinary(t, cache, "pilot-discovery"), envoytest.Binary(t)
	kubetest.Binary(t)
	if !harness.RunIsolated(t, harness.Variable+"="+cascade) {
		return
	}
	for _, a := range []netip.Addr{host, gatewayPod} {
		if out, err := exec.Command("ip", "addr", "add", a.String()+"/32", "dev", "lo").CombinedOutput(); err != nil {
			t.Fatalf("ip addr add %v: %v: %s", a, err, out)
		}
	}
	dir := t.TempDir()
	server := kubetest.Start(t)
	api := testkit.Must(kubernetes.NewForConfig(clustertest.ClientConfig(server)))
	applyDefinitions(t, api, filepath.Join(cache, "definitions", "istio"))
	applyManifest(t, api, testkit.Must(os.ReadFile("testdata/gateway.yaml")))
	kubeconfig := filepath.Join(dir, "kubeconfig")
	testkit.NoError(t, writeKubeconfig(kubeconfig, server, server.Address, ""))
	startPilot(t, pilotConfig{Binary: pilot, Dir: filepath.Join(dir, "pilot"), Kubeconfig: kubeconfig, Host: host, Log: logFile(t, dir, "pilot")})
	gateway := &gateway{t: t, envoy: envoy, dir: dir}
	cluster := testkit.Must(clustertest.New(clustertest.Config{
		Client: api, RunPod: clustertest.RunStarted(gateway.start), Address: func() (netip.Addr, error) { return gatewayPod, nil }, Host: host,
		Logger: slog.New(slog.NewTextHandler(logFile(t, dir, "cluster"), nil)),
	}))
	testkit.Run(t, cluster.Run)
	serveOwn(t)

	fleet := startFleet(t, dir)
	fleet.setBoundary(800)
	attached, other := fmt.Sprintf("http://%v:8080", gatewayPod), fmt.Sprintf("http://%v:8081", gatewayPod)
	client := harness.NewHTTP()
	t.Cleanup(client.CloseIdleConnections)
	for _, url := range []string{attached, other} {
		testkit.WaitFor(t, "Istio to route "+url, func() bool {
			by, err := send(client, url, harness.Prompt(1, sizes[0], 2))
			return err == nil && by == own
		})
	}

	l, stop := startLoad(t, attached, other)
	t.Cleanup(l.report)
	l.step("Istio's own route", servers{own, own, own}, func() {})
	filter := harness.Command{Binary: cascade, Args: []string{"attach", "istio", "--estimator-filter", "-c", fleet.file}}.Output(t)
	var paths []string
	l.step("EnvoyFilter applied", servers{"s0", "s1", "s1"}, func() { paths = applyManifest(t, api, []byte(filter)) })
	l.step("boundary moved", servers{"s0", "s0", "s1"}, func() { fleet.setBoundary(4000) })
	remove := func() { deleteObject(t, api, paths[0]) }
	l.step("EnvoyFilter deleted", servers{own, own, own}, remove)
	l.step("applied again", servers{"s0", "s0", "s1"}, func() { applyManifest(t, api, []byte(filter)) })
	var stream <-chan string
	l.step("deleted during a stream", servers{own, own, own}, func() {
		stream = startStream(t, attached)
		remove()
	})
	select {
	case text := <-stream:
		t.Fatalf("the stream ended before the EnvoyFilter was gone: %.200q", text)
	default:
	}
	stop()
	if len(l.problems) > 0 {
		t.Errorf("after the last step:\n%s", strings.Join(l.problems, "\n"))
	}
	select {
	case text := <-stream:
		if !strings.HasSuffix(text, "data: [DONE]\n\n") {
			t.Errorf("the stream that the EnvoyFilter was deleted during ends with %.200q", text[max(0, len(text)-200):])
		}
	case <-time.After(testkit.WaitTimeout()):
		t.Error("the stream that the EnvoyFilter was deleted during does not end")
	}
}

// startStream starts a stream of some 30 s, less than Envoy's time for draining, and returns what is read of it, with
// the error that ends it.
func startStream(t testing.TB, url string) <-chan string {
	t.Helper()
	body := harness.WithStream(harness.Prompt(99, sizes[0], 15_000))
	client := harness.NewHTTP() // with no connection from before the EnvoyFilter, which Istio's own route would serve
	client.Timeout = testkit.WaitTimeout()
	resp, err := client.Post(url+"/v1/completions", "application/json", strings.NewReader(string(body)))
	testkit.NoError(t, err)
	out := make(chan string, 1)
	go func() {
		defer client.CloseIdleConnections()
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			text = append(text, err.Error()...)
		}
		out <- string(text)
	}()
	return out
}

// serveOwn runs the server that the gateway's owner had before Cascade.
func serveOwn(t testing.TB) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set(ownHeader, "1")
		_, _ = io.WriteString(w, "{}")
	}))
	testkit.NoError(t, s.Listener.Close())
	s.Listener = testkit.Must(net.Listen("tcp", netip.AddrPortFrom(host, 8000).String()))
	s.Start()
	t.Cleanup(s.Close)
}

// gateway runs the gateway's Pod.
type gateway struct {
	t     testing.TB
	envoy string
	dir   string
}

// start starts Envoy as Istio's agent would, but with a time for draining connections of former configurations that no
// stream of the test outlives.
func (g *gateway) start(ctx context.Context, p clustertest.Pod) (stop func(), err error) {
	bootstrap := filepath.Join(g.dir, "envoy.yaml")
	text := istioBootstrap(istioGateway{Namespace: p.Namespace, Name: p.Name, ServiceAccount: p.Spec.ServiceAccountName, IP: p.IP, Pilot: host})
	if err := os.WriteFile(bootstrap, text, 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(g.envoy, "-c", bootstrap, "--disable-hot-restart", "--concurrency", "1", "--log-level", "info", "--drain-time-s", "600", "--drain-strategy", "immediate")
	log, err := openLog(g.t, g.dir, "envoy")
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = log, log, childprocess.DieWithParent()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	address := netip.AddrPortFrom(p.IP, gatewayAdminPort).String()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			return stop, conn.Close()
		}
		select {
		case <-ctx.Done():
			stop()
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// istioFleet is a fleet of two replicas in one process.
type istioFleet struct {
	t     testing.TB
	file  string // of the fleet
	store *store.Store
}

// startFleet starts the fleet, which ends with the test, and returns when its replicas serve.
func startFleet(t testing.TB, dir string) *istioFleet {
	t.Helper()
	for _, name := range []string{"fleet.yaml", "steady.json"} {
		testkit.NoError(t, os.WriteFile(filepath.Join(dir, name), testkit.Must(os.ReadFile(filepath.Join("testdata", name))), 0o600))
	}
	f := &istioFleet{t: t, file: filepath.Join(dir, "fleet.yaml")}
	harness.Command{Binary: cascade, Args: []string{"up", "-c", f.file}}.Start(t)
	testkit.WaitFor(t, "both replicas to serve", func() bool {
		resp, err := http.Get("http://127.0.0.1:18001/status")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		var status control.Status
		err = json.NewDecoder(resp.Body).Decode(&status)
		serves := func(id string) bool {
			r := harness.Find(status, id)
			return r.Health == "healthy" && r.Weight > 0 && r.Connected
		}
		return err == nil && serves("r0") && serves("r1")
	})
	f.store = store.New(testkit.Must(store.NewFile(filepath.Join(dir, "state"))))
	return f
}

// setBoundary stores a plan with a stage for each replica, and a boundary between them.
func (f *istioFleet) setBoundary(boundary policies.Tokens) {
	f.t.Helper()
	harness.StorePlan(f.t, f.store,
		policies.Stage{Low: 0, High: boundary, Replicas: []policies.ReplicaID{"r0"}},
		policies.Stage{Low: boundary, High: policies.Unbounded, Replicas: []policies.ReplicaID{"r1"}})
}

// logFile returns the file that a program's output is written to: in $CASCADE_ISTIO_LOGS, otherwise in the folder of the test.
func logFile(t testing.TB, dir, name string) *os.File {
	t.Helper()
	f, err := openLog(t, dir, name)
	testkit.NoError(t, err)
	return f
}

// openLog is logFile for goroutines other than the test's.
func openLog(t testing.TB, dir, name string) (*os.File, error) {
	if d := os.Getenv("CASCADE_ISTIO_LOGS"); d != "" {
		dir = d
	}
	f, err := os.Create(filepath.Join(dir, name+".log"))
	if err == nil {
		t.Cleanup(func() { f.Close() })
	}
	return f, err
}
