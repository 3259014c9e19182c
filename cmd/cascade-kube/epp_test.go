package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/cascadeinfer/cascade/cmd/cascade-kube/internal/clusterwatch"
	"github.com/cascadeinfer/cascade/cmd/internal/certs/devca"
	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/daemon"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/endpointpicker"
)

// TestEPPCommandLine checks which command lines are refused, and why.
func TestEPPCommandLine(t *testing.T) {
	half := filepath.Join(t.TempDir(), "half.yaml")
	testkit.NoError(t, os.WriteFile(half, []byte("plugins: [{type: "+testFilter+"}]"), 0o600))
	for line, want := range map[string]struct {
		code int
		text string
	}{
		"epp":                              {2, "--pool-name is required"},
		"epp --pool-name p x":              {2, `unexpected argument "x"`},
		"epp --pool-name p --body-limit 0": {2, "--body-limit 0: must be from 1 to 64"},
		"epp --pool-name p --pool-group inference.networking.x-k8s.io": {1, "pools of other groups are not read"},
		"epp --pool-name p --config-file /does/not/exist":              {1, "--config-file"},
		"epp --pool-name p --config-file " + half:                      {1, "use both"},
		"epp --pool-name p --kubeconfig /does/not/exist":               {1, "--kubeconfig"},
		"epp --pool-name p --metrics-cert-path /tls":                   {1, "--host is on loopback"},
		"epp --pool-name p --metrics-cert-path /tls --host ::1":        {1, "--host is on loopback"},
		"epp --pool-name p --metrics-cert-path /tls --host localhost":  {1, "--host is on loopback"},
		// Off loopback it goes on to the next fault.
		"epp --pool-name p --metrics-cert-path /tls --host 192.0.2.1 --kubeconfig /does/not/exist": {1, "--kubeconfig"},
	} {
		var out bytes.Buffer
		if code := run(t.Context(), strings.Fields(line), &out, &out); code != want.code || !strings.Contains(out.String(), want.text) {
			t.Errorf("%q: exit code %d: %s", line, code, out.String())
		}
	}
}

// TestTestHeaders reads configurations of the reference picker.
func TestTestHeaders(t *testing.T) {
	both := "plugins:\n- type: " + testFilter + "\n- type: " + servedVerifier + "\n"
	for _, c := range []struct {
		text string
		want bool
		err  string
	}{
		{text: ""},
		{text: "apiVersion: x\nkind: EndpointPickerConfig\nplugins: [{type: prefix-cache-scorer, parameters: {a: 1}}, {type: queue-scorer}]\n"},
		{text: both + "schedulingProfiles:\n- name: conformance-profile\n  plugins: [{pluginRef: " + testFilter + "}]\n", want: true},
		{text: "plugins: [{type: " + servedVerifier + "}]", err: "use both"},
		{text: "plugins: 5", err: "--config-file f"},
		{text: "a: [", err: "--config-file f"},
	} {
		got, err := parseTestHeaders("f", []byte(c.text))
		testkit.WantError(t, err, c.err)
		if got != c.want {
			t.Errorf("%q: %v", c.text, got)
		}
	}
	large := filepath.Join(t.TempDir(), "large.yaml")
	testkit.NoError(t, os.WriteFile(large, bytes.Repeat([]byte("# \n"), maxPickerConfig/3+1), 0o600))
	_, err := readsTestHeaders(large)
	testkit.WantError(t, err, "larger than")
}

func FuzzTestHeaders(f *testing.F) {
	f.Add("plugins: [{type: " + testFilter + "}]")
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := parseTestHeaders("f", []byte(text)); got && (err != nil || !strings.Contains(text, "plugins")) {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// TestEPPManifest checks the flags of the manifest, and that its Role allows what the picker does and
// nothing else: TestEPPOnAPIServer runs with its permissions.
func TestEPPManifest(t *testing.T) {
	text, err := os.ReadFile("../../deploy/kubernetes/epp.yaml")
	testkit.NoError(t, err)
	var rules []string
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		object, err := utilyaml.ToJSON(doc)
		testkit.NoError(t, err)
		var kind struct{ Kind string }
		testkit.NoError(t, json.Unmarshal(object, &kind))
		switch kind.Kind {
		case "Deployment":
			var d appsv1.Deployment
			testkit.NoError(t, json.Unmarshal(object, &d))
			args := d.Spec.Template.Spec.Containers[0].Args
			command, _, err := newRoot(&cli.App{}).Find(args[:1])
			testkit.NoError(t, err)
			if err := command.ParseFlags(args[1:]); err != nil || command.Name() != "epp" {
				t.Errorf("%s %q: %v", command.Name(), args, err)
			}
		case "Role":
			var r rbacv1.Role
			testkit.NoError(t, json.Unmarshal(object, &r))
			for _, r := range r.Rules {
				rules = append(rules, fmt.Sprint(r.Verbs, r.APIGroups, r.Resources, r.ResourceNames))
			}
		}
	}
	if want := []string{"[list watch] [] [pods] []", "[list watch] [inference.networking.k8s.io] [inferencepools] [vllm]"}; !slices.Equal(rules, want) {
		t.Errorf("the role allows %q, want %q", rules, want)
	}
}

// TestEPPOnAPIServer follows a pool with two ports on a real API server, with the permissions of the
// manifest: Pods that are not ready are not picked, and none is once the pool is deleted.
func TestEPPOnAPIServer(t *testing.T) {
	c := newLiveCluster(t)
	var permissions [][]byte
	for _, doc := range bytes.Split(testkit.Must(os.ReadFile("../../deploy/kubernetes/epp.yaml")), []byte("\n---\n")) {
		if bytes.Contains(doc, []byte("kind: Role")) || bytes.Contains(doc, []byte("kind: ServiceAccount\n")) {
			permissions = append(permissions, doc)
		}
	}
	manifest := filepath.Join(t.TempDir(), "permissions.yaml")
	testkit.NoError(t, os.WriteFile(manifest, bytes.Join(permissions, []byte("\n---\n")), 0o600))
	c.applyManifest(manifest)
	text := string(testkit.Must(os.ReadFile(c.config)))
	testkit.NoError(t, os.WriteFile(c.config, []byte(strings.Replace(text, "cascade-discovery", "cascade-epp", 1)), 0o600))
	const pools = "/apis/inference.networking.k8s.io/v1/namespaces/llm/inferencepools"
	pool := func(method, path, version, ports string) {
		t.Helper()
		c.api.Do(method, path, fmt.Appendf(nil, `{"apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": {"name": "vllm", "resourceVersion": %q},
			"spec": {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [%s]}}`, version, ports))
	}
	pool("POST", pools, "", `{"number": 8000}, {"number": 8001}`)
	c.createPod("a", "10.0.0.1", true, "")
	c.createPod("b", "10.0.0.2", false, "")
	picker, probes := freeAddress(t), freeAddress(t)
	port := func(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }
	ctx, cancel := context.WithCancel(context.Background())
	log, done := &testkit.Log{}, make(chan int, 1)
	go func() {
		done <- run(ctx, []string{"epp", "--log", "info", "--kubeconfig", c.config, "--pool-name", "vllm", "--pool-namespace", "llm", "--zap-encoder", "json", "--v", "4",
			"--grpc-port", port(picker), "--grpc-health-port", port(probes), "--metrics-port", port(c.status)}, log, log)
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-done; code != 0 || t.Failed() {
			t.Errorf("epp ended with %d: %s", code, log)
		}
	})
	conn := testkit.Must(grpc.NewClient(picker, grpc.WithTransportCredentials(insecure.NewCredentials())))
	t.Cleanup(func() { conn.Close() })
	picked := func() string {
		seen := map[string]bool{}
		for range 40 {
			seen[pick(t, conn)] = true
		}
		var out []string
		for a := range seen {
			out = append(out, a)
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	want := func(what, endpoints string) {
		t.Helper()
		testkit.WaitForValue(t, what, picked, func(got string) bool { return got == endpoints })
	}
	want("both ports of the Pod that is ready", "10.0.0.1:8000 10.0.0.1:8001")
	health := testkit.Must(grpc.NewClient(probes, grpc.WithTransportCredentials(insecure.NewCredentials())))
	t.Cleanup(func() { health.Close() })
	if r, err := healthpb.NewHealthClient(health).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "inference-extension"}); err != nil || r.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", r, err)
	}
	c.setStatus("b", "10.0.0.2", true)
	want("the other Pod, too", "10.0.0.1:8000 10.0.0.1:8001 10.0.0.2:8000 10.0.0.2:8001")
	var present struct {
		Metadata struct{ ResourceVersion string }
	}
	testkit.NoError(t, json.Unmarshal(c.api.Do("GET", pools+"/vllm", nil), &present))
	pool("PUT", pools+"/vllm", present.Metadata.ResourceVersion, `{"number": 8001}`)
	want("one port", "10.0.0.1:8001 10.0.0.2:8001")
	c.setStatus("a", "10.0.0.1", false)
	want("without the first Pod", "10.0.0.2:8001")
	c.api.Do("DELETE", pools+"/vllm", nil)
	testkit.WaitFor(t, "a log line about the pool that is gone", func() bool { return strings.Contains(log.String(), "it does not exist") })
	want("no endpoint", "")
}

// elsewhere is a listener that says that it is not on loopback.
type elsewhere struct{ net.Listener }

func (elsewhere) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 9090} }

// TestEPPMetrics: off loopback the picker's metrics need a certificate of the same authority; without a certificate of its own
// the picker has none there.
func TestEPPMetrics(t *testing.T) {
	dir := t.TempDir()
	authority := testkit.Must(devca.New("example.org", time.Now()))
	testkit.NoError(t, authority.Save(dir))
	for _, role := range []identity.Role{identity.Proxy, identity.Operator} {
		files := filepath.Join(dir, string(role))
		testkit.NoError(t, authority.Issue(files, testkit.Must(identity.New("example.org", role, "x")), []string{"127.0.0.1"}, time.Now()))
		testkit.NoError(t, os.Rename(filepath.Join(files, devca.Cert), filepath.Join(files, "tls.crt")))
		testkit.NoError(t, os.Rename(filepath.Join(files, devca.Key), filepath.Join(files, "tls.key")))
		testkit.NoError(t, os.WriteFile(filepath.Join(files, "ca.crt"), testkit.Must(os.ReadFile(filepath.Join(dir, devca.AuthorityCert))), 0o600))
	}
	p := &eppFlags{metricsCerts: filepath.Join(dir, string(identity.Proxy))}
	p.Host, p.MetricsPort = "192.0.2.1", 9090
	own, address, err := p.metricsCertificate(nil)
	testkit.NoError(t, err)
	if address != "192.0.2.1:9090" {
		t.Errorf("with a certificate the metrics are at %s", address)
	}
	_, _, err = (&eppFlags{metricsCerts: dir}).metricsCertificate(nil)
	testkit.WantError(t, err, "--metrics-cert-path")
	if none, loopback, err := (&eppFlags{Flags: p.Flags}).metricsCertificate(nil); none != nil || loopback != "127.0.0.1:9090" || err != nil {
		t.Errorf("without a certificate: %v, %s, %v", none, loopback, err)
	}

	pods := testkit.Must(clusterwatch.New(clusterwatch.Config{Client: fake.NewClientset(), Namespace: "llm", Service: "vllm"}))
	d := testkit.Must(daemon.New(t.Context(), daemon.Config{Log: slog.New(slog.DiscardHandler), Certs: own}))
	defer d.Close()
	picker := testkit.Must(endpointpicker.New(endpointpicker.Config{Metrics: d.Metrics}))
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	testkit.Run(t, func(ctx context.Context) error {
		return serveProbes(ctx, elsewhere{l}, d, pods, picker)
	})
	path := "/metrics"
	get := func(scheme string, c *tls.Config) (int, error) {
		transport := &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}
		resp, err := (&http.Client{Transport: transport}).Get(scheme + "://" + l.Addr().String() + path)
		if err != nil {
			return 0, err
		}
		resp.Body.Close()
		return resp.StatusCode, nil
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(testkit.Must(os.ReadFile(filepath.Join(dir, devca.AuthorityCert))))
	scraper := filepath.Join(dir, string(identity.Operator))
	pair := testkit.Must(tls.LoadX509KeyPair(filepath.Join(scraper, "tls.crt"), filepath.Join(scraper, "tls.key")))
	if code, err := get("https", &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}); code != http.StatusOK {
		t.Errorf("with a certificate: %d, %v", code, err)
	}
	if code, err := get("https", &tls.Config{RootCAs: roots}); err == nil {
		t.Errorf("without a certificate: %d", code)
	}
	if code, err := get("http", nil); err == nil && code == http.StatusOK {
		t.Error("in plain text the metrics are served")
	}
	path = "/readyz"
	for _, want := range []int{http.StatusServiceUnavailable, http.StatusOK} { // before the pool was read, and afterwards
		if code, err := get("https", &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}); code != want {
			t.Errorf("%s: %d, %v, want %d", path, code, err, want)
		}
		picker.UpdatePool(nil)
	}
	bare := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	plain := testkit.Must(daemon.New(t.Context(), daemon.Config{Log: slog.New(slog.DiscardHandler)}))
	defer plain.Close()
	testkit.WantError(t, serveProbes(t.Context(), elsewhere{bare}, plain, pods, picker), "not a loopback address")
}

// pick returns the destination of a request without a body, "" if there is none.
func pick(t *testing.T, conn *grpc.ClientConn) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.WaitTimeout())
	defer cancel()
	stream, err := extproc.NewExternalProcessorClient(conn).Process(ctx, grpc.WaitForReady(true))
	testkit.NoError(t, err)
	testkit.NoError(t, stream.Send(&extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extproc.HttpHeaders{Headers: &corev3.HeaderMap{}, EndOfStream: true},
	}}))
	answer := testkit.Must(stream.Recv())
	for _, h := range answer.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
		if h.Header.Key == "x-gateway-destination-endpoint" {
			return string(h.Header.RawValue)
		}
	}
	return ""
}
