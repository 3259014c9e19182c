package envoy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	service "github.com/cascadeinfer/cascade/xds/length"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/server"
)

func TestMain(m *testing.M) {
	if os.Getenv(asService) != "" {
		serveAlone()
		return
	}
	goleak.VerifyTestMain(m)
}

// built returns the module, built once in the way make builds it.
var built = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "estimator")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "cascade-length.wasm")
	cmd := exec.Command("go", "build", "-buildmode=c-shared", "-trimpath", "-buildvcs=false", "-ldflags=-w -buildid=", "-o", out, ".")
	cmd.Dir = filepath.Join("..", "..", "..", "..", "wasm", "estimator")
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "GOWASM=", "GOFLAGS=", "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %v\n%s", err, msg)
	}
	return os.ReadFile(out)
})

// bodyLimit is not the usual one.
const bodyLimit = 4 << 20

func module(t testing.TB) *resources.EstimatorModule {
	t.Helper()
	testkit.Tool(t, "go")
	code, err := built()
	testkit.NoError(t, err)
	m, err := resources.NewModule(code, bodyLimit)
	testkit.NoError(t, err)
	return m
}

// harness is an Envoy between a client and upstreams that report the requests they received.
type harness struct {
	t      testing.TB
	view   resources.View
	cache  *cache.Cache
	envoy  *envoytest.Process
	url    string
	client http.Client
	kills  map[string]func() // of the upstreams, by name
}

// served is the answer of an upstream, or of Envoy itself.
type served struct {
	Status  int      `json:"-"`
	By      string   // the upstream's name
	Tokens  []string // values of the control headers that arrived
	Models  []string
	Other   []string // another header under the control prefix
	Bytes   int
	Trailer string
	Raw     string `json:"-"` // Envoy's own answer, if no upstream answered
}

// view returns a view with model m in stages at 100 and 1000 tokens, and model n/2 in one stage.
// Every host but m.test serves both.
func view() resources.View {
	return resources.View{
		Models: []resources.Model{
			{Name: "m", Context: 1 << 20, Hosts: []string{"m.test"}, BytesPerToken: 4000},
			{Name: "n/2", Context: 1 << 20, BytesPerToken: 2000},
		},
		Plans: []policies.Plan{
			{Model: "m", Epoch: 1, Stages: []policies.Stage{
				{Low: 0, High: 100, Replicas: []policies.ReplicaID{"m0"}},
				{Low: 100, High: 1000, Replicas: []policies.ReplicaID{"m1"}},
				{Low: 1000, High: policies.Unbounded, Replicas: []policies.ReplicaID{"m2"}},
			}},
			policies.OneStagePlan("n/2", []policies.ReplicaID{"n0"}),
		},
		Endpoints: []resources.Endpoint{
			{Replica: policies.Replica{ID: "m0", Model: "m", Adapters: []string{"m-lora"}}}, {Replica: policies.Replica{ID: "m1", Model: "m"}},
			{Replica: policies.Replica{ID: "m2", Model: "m"}}, {Replica: policies.Replica{ID: "n0", Model: "n/2"}},
		},
		// TestLateService covers a late service.
		Settings: resources.Settings{Listen: "127.0.0.1:0", LengthTimeout: 20 * time.Second, BodyLimit: bodyLimit},
	}
}

// startHarness runs an Envoy on a view.
func startHarness(t testing.TB, v resources.View) *harness {
	t.Helper()
	return startHarnessOf(t, v, resources.ListenerName, func(control string) string {
		return string(testkit.Must(resources.Bootstrap(resources.BootstrapConfig{NodeID: "envoy", ControlPlane: control})))
	})
}

// startHarnessOf runs an Envoy on a view, with a bootstrap for the address of a control plane, which has the listener.
func startHarnessOf(t testing.TB, v resources.View, listener string, bootstrap func(control string) string) *harness {
	t.Helper()
	envoytest.Binary(t)
	r := &harness{t: t, view: v, cache: cache.New(cache.Config{}), kills: make(map[string]func())}
	for i := range v.Endpoints {
		name := string(v.Endpoints[i].ID)
		v.Endpoints[i].Address, r.kills[name] = upstream(t, name)
	}
	if v.Settings.Estimator == resources.ExtProc && v.Settings.LengthService == "" {
		v.Settings.LengthService = lengthService(t, v, 0)
	}
	r.view = v
	r.serveView(v)
	s, err := server.New(server.Config{Cache: r.cache})
	testkit.NoError(t, err)
	server := grpc.NewServer()
	s.Register(t.Context(), server)
	r.envoy = envoytest.Start(t, envoytest.Config{Bootstrap: bootstrap(listen(t, server))})
	r.url = "http://" + r.envoy.Listener(listener)
	r.client.Timeout = 30 * time.Second
	r.client.Transport = &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(r.client.CloseIdleConnections)
	if v.Settings.Module != nil {
		r.waitUntilServing()
		r.waitForEstimates(true)
	}
	return r
}

// enough is a number of fresh connections that reaches all workers of Envoy.
const enough = 16

// waitUntilServing waits until every worker of a newly started Envoy has its replicas: its initial wait may
// be shorter than a busy host takes to send them.
func (r *harness) waitUntilServing() {
	r.t.Helper()
	testkit.WaitFor(r.t, "Envoy to serve", func() bool {
		for range enough {
			r.client.CloseIdleConnections()
			if r.post("m.test", bytes.NewReader(sized("m", 400))).Status != 200 {
				return false
			}
		}
		return true
	})
}

// waitForEstimates waits until every worker of Envoy forwards requests with an estimate, or every worker
// without one: each worker loads and unloads a module independently.
func (r *harness) waitForEstimates(with bool) {
	r.t.Helper()
	testkit.WaitFor(r.t, fmt.Sprintf("requests with an estimate: %v", with), func() bool {
		for range enough {
			r.client.CloseIdleConnections()
			got := r.post("m.test", bytes.NewReader(sized("m", 400)))
			if got.Status != 200 {
				r.t.Fatalf("while the slot changes: %+v", got)
			}
			if (len(got.Tokens) > 0) != with {
				return false
			}
		}
		return true
	})
}

// waitForSlotStats waits until the statistics of the slot meet a condition.
func (r *harness) waitForSlotStats(what string, reached func(map[string]int64) bool) {
	r.t.Helper()
	const prefix = "extension_config_discovery.http_filter." + resources.LengthFilter + "."
	testkit.WaitForValue(r.t, what, func() map[string]int64 {
		slot := map[string]int64{}
		for name, n := range r.envoy.Stats(regexp.QuoteMeta(prefix)) {
			slot[strings.TrimPrefix(name, prefix)] = n
		}
		return slot
	}, reached)
}

// serveView serves a view after checking its resources.
func (r *harness) serveView(v resources.View) {
	r.t.Helper()
	set, err := resources.Build(v)
	if err == nil {
		err = resources.Prove(set)
	}
	testkit.NoError(r.t, err)
	r.cache.Set("", set)
}

// listen serves until the end of the test and returns the address.
func listen(t testing.TB, s *grpc.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Stop(); wg.Wait() })
	return l.Addr().String()
}

// upstream runs a replica for Envoy, and returns its address and what ends it as the death of its process would.
func upstream(t testing.TB, name string) (address string, kill func()) {
	u := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			t.Errorf("%s: body: %v", name, err)
		}
		_ = json.NewEncoder(w).Encode(served{By: name, Tokens: r.Header.Values(length.TokensHeader), Models: r.Header.Values(length.ModelHeader),
			Other: r.Header.Values("x-cascade-other"), Bytes: int(n), Trailer: r.Trailer.Get("x-end")})
	}))
	u.Config.Protocols = new(http.Protocols)
	u.Config.Protocols.SetHTTP1(true)
	u.Config.Protocols.SetUnencryptedHTTP2(true)
	u.Start()
	t.Cleanup(u.Close)
	return u.Listener.Addr().String(), func() {
		_ = u.Listener.Close()
		_ = u.Config.Close()
	}
}

// lengthService is the ext_proc estimator for a view; 0 is its default deadline.
func lengthService(t testing.TB, v resources.View, deadline time.Duration) string {
	ratios, bases := map[string]length.Ratio{}, map[string]string{}
	c := service.Config{MaxBody: int(v.Settings.BodyLimit), Deadline: deadline}
	for _, m := range v.Models {
		c.Models = append(c.Models, service.Model{Name: m.Name, Hosts: m.Hosts})
		ratios[m.Name] = m.BytesPerToken
	}
	for _, e := range v.Endpoints {
		for _, a := range e.Adapters {
			bases[a] = e.Model
		}
	}
	c.BytesPerToken = func(m string) length.Ratio { return ratios[m] }
	c.BaseOf = func(a string) string { return bases[a] }
	s, err := service.New(c)
	testkit.NoError(t, err)
	server := grpc.NewServer(s.Options()...)
	s.Register(server)
	return listen(t, server)
}

// post sends a body to a host; headers are pairs of names and values that are added, not set.
func (r *harness) post(host string, body io.Reader, headers ...string) served {
	r.t.Helper()
	got, err := r.send("POST", host, body, headers...)
	testkit.NoError(r.t, err)
	return got
}

func (r *harness) send(method, host string, body io.Reader, headers ...string) (served, error) {
	path := "/v1/completions"
	if method == http.MethodGet {
		path = "/v1/models"
	}
	q, err := http.NewRequestWithContext(context.Background(), method, r.url+path, body)
	if err != nil {
		return served{}, err
	}
	q.Host = host
	for i := 0; i < len(headers); i += 2 {
		q.Header.Add(headers[i], headers[i+1])
	}
	if _, ok := body.(trailed); ok {
		q.Trailer = http.Header{"X-End": {"end"}}
	}
	response, err := r.client.Do(q)
	if err != nil {
		return served{}, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return served{}, err
	}
	out := served{Status: response.StatusCode}
	if json.Unmarshal(data, &out) != nil || out.By == "" {
		out.Raw = string(data)
	}
	return out, nil
}

// expect checks which upstream served, which estimate it received, and how many bytes.
func (r *harness) expect(what string, got served, by, tokens, model string, size int) {
	r.t.Helper()
	if got.Status != 200 || got.By != by || strings.Join(got.Tokens, ";") != tokens || strings.Join(got.Models, ";") != model || got.Bytes != size || len(got.Other) > 0 {
		r.t.Errorf("%s: got %+v; want %s, tokens %q, model %q and %d bytes", what, got, by, tokens, model, size)
	}
}

// chunked hides the size of a body from net/http, which then sends no
// content-length.
type chunked struct{ io.Reader }

// trailed is chunked, with a trailer.
type trailed struct{ io.Reader }

// completion returns a body whose prompt has n bytes.
func completion(model string, n int) []byte {
	return fmt.Appendf(nil, `{"model":%q,"max_tokens":3,"prompt":%q}`, model, strings.Repeat("x", n))
}

// sized returns a body of n bytes in all.
func sized(model string, n int) []byte {
	return completion(model, n-len(completion(model, 0)))
}

// slow returns a body in pieces, so that they arrive one by one.
type slow struct {
	r *bytes.Reader
	n int
}

func (s slow) Read(p []byte) (int, error) {
	time.Sleep(time.Millisecond) // paces the upload; it waits for no event
	return s.r.Read(p[:min(len(p), s.n)])
}

func stageOf(tokens int) string {
	switch {
	case tokens < 100:
		return "m0"
	case tokens < 1000:
		return "m1"
	}
	return "m2"
}

// valuesAround returns the given values, and those just below and just above each.
func valuesAround(at ...int) (out []int) {
	for _, a := range at {
		out = append(out, a-1, a, a+1)
	}
	return out
}
