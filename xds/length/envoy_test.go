package length

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

// fleet is a real Envoy between a client and upstreams that report what they received.
type fleet struct {
	t         testing.TB
	server    *Server
	envoy     *envoytest.Process
	url       string
	estimator *grpc.Server
	client    http.Client
}

// served is the response of an upstream or of Envoy itself.
type served struct {
	Status  int      `json:"-"`
	By      string   // the upstream's name
	Tokens  []string // values of the control headers that arrived
	Models  []string
	Other   []string // another header under the control prefix
	Bytes   int
	Trailer string
	Raw     string `json:"-"` // Envoy's own response, when no upstream served
}

func newFleet(t testing.TB, c Config) *fleet {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t, server: s, estimator: grpc.NewServer(s.Options()...)}
	s.Register(f.estimator)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { f.estimator.Serve(listener) })
	t.Cleanup(func() {
		f.estimator.Stop()
		wg.Wait()
	})
	template, err := os.ReadFile("testdata/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	fill := []string{"ESTIMATOR_PORT", port(listener.Addr())}
	for i, name := range []string{"m/s0", "m/s1", "m/s2", "n/s0"} {
		u := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			if err != nil {
				t.Errorf("%s: body: %v", name, err)
			}
			json.NewEncoder(w).Encode(served{By: name, Tokens: r.Header.Values(length.TokensHeader), Models: r.Header.Values(length.ModelHeader),
				Other: r.Header.Values("x-cascade-other"), Bytes: int(n), Trailer: r.Trailer.Get("x-end")})
		}))
		t.Cleanup(u.Close)
		fill = append(fill, fmt.Sprintf("UPSTREAM_%d", i), port(u.Listener.Addr()))
	}
	f.envoy = envoytest.Start(t, envoytest.Config{Bootstrap: strings.NewReplacer(fill...).Replace(string(template))})
	f.url = "http://" + f.envoy.Listener("cascade")
	f.client.Timeout = 30 * time.Second
	f.client.Transport = &http.Transport{}
	t.Cleanup(f.client.CloseIdleConnections)
	return f
}

func port(a net.Addr) string { return strconv.Itoa(a.(*net.TCPAddr).Port) }

// post sends a body to a host; headers are pairs that are added, not set.
func (f *fleet) post(host string, body io.Reader, headers ...string) served {
	f.t.Helper()
	r, err := http.NewRequest("POST", f.url+"/v1/completions", body)
	if err != nil {
		f.t.Fatal(err)
	}
	r.Host = host
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return f.do(r)
}

func (f *fleet) do(r *http.Request) served {
	f.t.Helper()
	response, err := f.client.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	out := served{Status: response.StatusCode}
	if json.Unmarshal(data, &out) != nil || out.By == "" {
		out.Raw = string(data)
	}
	return out
}

// expect checks which upstream served, which estimate arrived there, and how many
// bytes.
func (f *fleet) expect(what string, got served, by, tokens, model string, size int) {
	f.t.Helper()
	if got.Status != 200 || got.By != by || strings.Join(got.Tokens, ";") != tokens || strings.Join(got.Models, ";") != model || got.Bytes != size || len(got.Other) > 0 {
		f.t.Errorf("%s: got %+v; want %s, tokens %q, model %q and %d bytes", what, got, by, tokens, model, size)
	}
}

// chunked hides the size of a body from net/http, which then sends no
// content-length.
type chunked struct{ io.Reader }

// completion returns a body whose prompt has n bytes.
func completion(model string, n int) []byte {
	return fmt.Appendf(nil, `{"model":%q,"max_tokens":3,"prompt":%q}`, model, strings.Repeat("x", n))
}

// sized returns a body of n bytes in all.
func sized(model string, n int) []byte {
	return completion(model, n-len(completion(model, 0)))
}

func stageOf(tokens int) string {
	switch {
	case tokens < 100:
		return "m/s0"
	case tokens < 1000:
		return "m/s1"
	}
	return "m/s2"
}

// around returns values at, just below and just above each of the given ones.
func around(at ...int) (out []int) {
	for _, a := range at {
		out = append(out, a-1, a, a+1)
	}
	return out
}

// TestEnvoy routes through a real Envoy by the estimator's headers.
func TestEnvoy(t *testing.T) {
	c := testConfig()
	c.Models[0].Name, c.Models[1].Hosts = "m", nil
	c.BytesPerToken = func(string) length.Ratio { return 4000 }
	c.MaxBody = 4 << 20
	f := newFleet(t, c)
	estimator := length.Estimator{BytesPerToken: 4000}

	t.Run("by length header", func(t *testing.T) {
		f := f.on(t)
		for _, n := range around(400, 4000, 220<<10) {
			want := int(estimator.FromContentLength(int64(n)))
			f.expect(fmt.Sprintf("%d bytes", n), f.post("m.test", bytes.NewReader(sized("m", n))), stageOf(want), strconv.Itoa(want), "m", n)
		}
		// The routes by content-length and those by the estimate have the same
		// boundaries.
		for _, cut := range []policies.Tokens{100, 1000} {
			if at := estimator.CutBytes(cut); at != 4*int64(cut) {
				t.Errorf("the cut at %d tokens lies at %d bytes", cut, at)
			}
		}
	})
	t.Run("by body, chunked", func(t *testing.T) {
		f := f.on(t)
		for _, tokens := range around(100, 1000, 55<<10) {
			for _, n := range []int{4 * tokens, 4*tokens + 3} {
				body := completion("m", n)
				f.expect(fmt.Sprintf("%d bytes of text", n), f.post("m.test", chunked{bytes.NewReader(body)}), stageOf(tokens), strconv.Itoa(tokens), "m", len(body))
			}
		}
		for _, tokens := range around(100, 1000) {
			body := []byte(`{"model":"m","prompt":[` + strings.Repeat("70000,", tokens-1) + `7]}`)
			f.expect(fmt.Sprintf("%d token ids", tokens), f.post("m.test", chunked{bytes.NewReader(body)}), stageOf(tokens), strconv.Itoa(tokens), "m", len(body))
		}
		body := []byte(`{"prompt":"x`)
		f.expect("malformed", f.post("m.test", chunked{bytes.NewReader(body)}), "m/s0", "3", "m", len(body))
		f.expect("malformed and long", f.post("m.test", chunked{strings.NewReader(strings.Repeat("x", 220<<10))}), "m/s2", "56320", "m", 220<<10)
	})
	t.Run("by body, shared host", func(t *testing.T) {
		f := f.on(t)
		for _, tokens := range around(100, 1000, 55<<10) {
			body := completion("m", 4*tokens)
			f.expect(fmt.Sprintf("m, %d tokens", tokens), f.post("else.test:8080", bytes.NewReader(body)), stageOf(tokens), strconv.Itoa(tokens), "m", len(body))
		}
		body := completion("n/2", 400)
		f.expect("n", f.post("else.test", bytes.NewReader(body)), "n/s0", "100", "n/2", len(body))
		f.expect("n, chunked", f.post("else.test", chunked{bytes.NewReader(body)}), "n/s0", "100", "n/2", len(body))
		if got := f.post("else.test", bytes.NewReader(completion("q", 400))); got.Status != 404 || !strings.Contains(got.Raw, "model_not_found") {
			t.Errorf("unknown model: %+v", got)
		}
		if got := f.post("else.test", bytes.NewReader(make([]byte, c.MaxBody+1))); got.Status != 413 || !strings.Contains(got.Raw, "request_too_large") {
			t.Errorf("larger than MaxBody: %+v", got)
		}
		body = completion("m", 2<<20)
		f.expect("2 MiB", f.post("else.test", bytes.NewReader(body)), "m/s2", strconv.Itoa(2<<20/4), "m", len(body))
	})
	t.Run("forged headers", func(t *testing.T) {
		f := f.on(t)
		long := sized("m", 5000)
		for _, forged := range [][]string{
			{"x-cascade-tokens", "5", "x-gateway-model-name", "m"},
			{"x-cascade-tokens", "5000", "x-cascade-tokens", "5", "x-gateway-model-name", "m", "x-gateway-model-name", "n/2"},
			{"X-Cascade-Tokens", "5", "x-cascade-tokens", "abc", "X-Cascade-Other", "1", "x-cascade-other", "2"},
		} {
			f.expect(fmt.Sprint("by length, ", forged), f.post("m.test", bytes.NewReader(long), forged...), "m/s2", "1250", "m", len(long))
			f.expect(fmt.Sprint("by body, ", forged), f.post("else.test", bytes.NewReader(long), forged...), "m/s2", strconv.Itoa((len(long)-len(completion("m", 0)))/4), "m", len(long))
			get, err := http.NewRequest("GET", f.url+"/v1/models", nil)
			if err != nil {
				t.Fatal(err)
			}
			get.Host = "m.test"
			for i := 0; i < len(forged); i += 2 {
				get.Header.Add(forged[i], forged[i+1])
			}
			f.expect(fmt.Sprint("no body, ", forged), f.do(get), "m/s2", "", "m", 0)
		}
	})
	t.Run("h2c with trailers", func(t *testing.T) {
		f := f.on(t)
		h2 := &http.Transport{Protocols: new(http.Protocols)}
		h2.Protocols.SetUnencryptedHTTP2(true)
		t.Cleanup(h2.CloseIdleConnections)
		f.client.Transport = h2
		body := completion("m", 400)
		r, err := http.NewRequest("POST", f.url, chunked{bytes.NewReader(body)})
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "m.test"
		r.Trailer = http.Header{"X-End": {"end"}}
		f.expect("trailers", f.do(r), "m/s1", "100", "m", len(body))
	})
	t.Run("estimator down", func(t *testing.T) {
		f := f.on(t)
		f.estimator.Stop()
		for _, n := range around(400, 4000, 220<<10) {
			want := int(estimator.FromContentLength(int64(n)))
			f.expect(fmt.Sprintf("%d bytes", n), f.post("m.test", bytes.NewReader(sized("m", n)), "x-cascade-tokens", "5", "x-gateway-model-name", "m"), stageOf(want), "", "", n)
		}
		body := completion("m", 4)
		f.expect("chunked", f.post("m.test", chunked{bytes.NewReader(body)}), "m/s2", "", "", len(body))
		if got := f.post("else.test", bytes.NewReader(body)); got.Status != 404 {
			t.Errorf("shared host: %+v", got)
		}
	})
}

// TestEnvoyWithSlowUpload checks a body for which the estimator's wait ends: Envoy
// sends the whole request to the stage of requests without an estimate.
func TestEnvoyWithSlowUpload(t *testing.T) {
	c := testConfig()
	c.Models[1].Hosts = nil
	c.Deadline = 50 * time.Millisecond
	f := newFleet(t, c)
	body := completion("m", 4)
	r, w := io.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() {
		w.Write(body[:10])
		late := f.server.metrics.answers.WithLabelValues(string(late))
		for give := time.Now().Add(time.Minute); testutil.ToFloat64(late) == 0 && time.Now().Before(give); {
			time.Sleep(time.Millisecond)
		}
		w.Write(body[10:])
		w.Close()
	})
	f.expect("slow", f.post("m.test", r), "m/s2", "", "", len(body))
	wg.Wait()
	if n := testutil.ToFloat64(f.server.metrics.answers.WithLabelValues(string(late))); n != 1 {
		t.Errorf("%v late bodies, want 1", n)
	}
}

// on returns the fleet for a subtest or a benchmark of it.
func (f *fleet) on(t testing.TB) *fleet {
	g := *f
	g.t = t
	return &g
}

// BenchmarkEnvoy measures requests through a real Envoy, 16 at a time: without
// an estimate, by content-length routes, by ext_proc on headers and by ext_proc
// on the body. Client, Envoy, estimator and upstream share the machine.
func BenchmarkEnvoy(b *testing.B) {
	const concurrency = 16
	c := testConfig()
	c.Models[1].Hosts = nil
	f := newFleet(b, c)
	f.client.Transport = &http.Transport{MaxIdleConnsPerHost: concurrency}
	b.Cleanup(f.client.CloseIdleConnections)
	for _, size := range []int{200, 220 << 10, 2 << 20} {
		body := sized("m", size)
		for _, way := range []struct{ name, host string }{{"none", "bare.test"}, {"content-length", "floor.test"}, {"headers", "m.test"}, {"body", "else.test"}} {
			b.Run(fmt.Sprintf("%d/%s", size, way.name), func(b *testing.B) {
				f := f.on(b)
				b.SetBytes(int64(size))
				b.SetParallelism(max(1, concurrency/runtime.GOMAXPROCS(0)))
				var mu sync.Mutex
				var all []time.Duration
				b.RunParallel(func(pb *testing.PB) {
					var mine []time.Duration
					for pb.Next() {
						began := time.Now()
						got := f.post(way.host, bytes.NewReader(body))
						mine = append(mine, time.Since(began))
						if got.Status != 200 || got.Bytes != size {
							b.Errorf("got %+v", got)
						}
					}
					mu.Lock()
					defer mu.Unlock()
					all = append(all, mine...)
				})
				slices.Sort(all)
				b.ReportMetric(float64(len(all))/b.Elapsed().Seconds(), "req/s")
				b.ReportMetric(all[len(all)/2].Seconds()*1e3, "p50-ms")
				b.ReportMetric(all[len(all)*99/100].Seconds()*1e3, "p99-ms")
			})
		}
	}
}
