package length

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

// fleet is a real Envoy between a client and upstreams that report what they received.
// What Envoy does with the answers, and without the service, is tested with the published
// resources in cmd/internal/e2e/envoy.
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
	testkit.NoError(t, err)
	f := &fleet{t: t, server: s, estimator: grpc.NewServer(s.Options()...)}
	s.Register(f.estimator)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() { f.estimator.Serve(listener) })
	t.Cleanup(func() {
		f.estimator.Stop()
		wg.Wait()
	})
	template, err := os.ReadFile("testdata/envoy.yaml")
	testkit.NoError(t, err)
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
	testkit.NoError(f.t, err)
	r.Host = host
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return f.do(r)
}

func (f *fleet) do(r *http.Request) served {
	f.t.Helper()
	response, err := f.client.Do(r)
	testkit.NoError(f.t, err)
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	testkit.NoError(f.t, err)
	out := served{Status: response.StatusCode}
	if json.Unmarshal(data, &out) != nil || out.By == "" {
		out.Raw = string(data)
	}
	return out
}

// completion returns a body whose prompt has n bytes.
func completion(model string, n int) []byte {
	return fmt.Appendf(nil, `{"model":%q,"max_tokens":3,"prompt":%q}`, model, strings.Repeat("x", n))
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
	if got := f.post("m.test", r); got.Status != 200 || got.By != "m/s2" || len(got.Tokens)+len(got.Models) > 0 || got.Bytes != len(body) {
		t.Errorf("got %+v; want the last stage, without an estimate", got)
	}
	wg.Wait()
	if n := testutil.ToFloat64(f.server.metrics.answers.WithLabelValues(string(late))); n != 1 {
		t.Errorf("%v late bodies, want 1", n)
	}
}
