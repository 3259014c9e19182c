package publish_test

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/policies"
	wire "github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/length"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// startEstimator runs the length service on loopback.
func startEstimator(t *testing.T, models ...length.Model) (address string, stop func()) {
	t.Helper()
	s, err := length.New(length.Config{Models: models})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(s.Options()...)
	s.Register(server)
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(listener) })
	stop = sync.OnceFunc(func() { server.Stop(); wg.Wait() })
	t.Cleanup(stop)
	return listener.Addr().String(), stop
}

// TestEnvoyEstimator has a real Envoy ask the length service for what the
// headers do not contain: the length of a chunked body, and the model where the
// host name does not select one.
func TestEnvoyEstimator(t *testing.T) {
	backends := startBackends(t, "a", "b", "q")
	estimator, stop := startEstimator(t, length.Model{Name: "m", Hosts: []string{"m.example"}}, length.Model{Name: "z"})
	v := backendView(backends, 1, []policies.Tokens{1000}, "a", "b")
	v.Models[0].Hosts = []string{"m.example"}
	v.Models = append(v.Models, resources.Model{Name: "z", Context: 1 << 17})
	v.Plans = append(v.Plans, policies.Plan{Model: "z", Epoch: 1, Stages: policies.OneStagePlan("z", []policies.ReplicaID{"q"}).Stages})
	q := endpoint("z", "q")
	q.Address = backends["q"].address
	v.Endpoints = append(v.Endpoints, q)
	v.Settings.Estimator, v.Settings.LengthService = resources.ExtProc, estimator
	v.Settings.LengthTimeout = time.Minute // by default Envoy continues without the answer of a busy host
	p := startControlPlane(t, "")
	p.publisher.Submit(v)
	c := newClient(t, startEnvoy(t, "edge", p.address))
	p.waitForCurrent(t, 1, 1)

	ask := func(host, model string, bytes int, chunked bool) (int, string, string) {
		t.Helper()
		body := `{"model":"` + model + `","prompt":"` + strings.Repeat("x", bytes) + `"}`
		var reader io.Reader = strings.NewReader(body)
		if chunked {
			reader = struct{ io.Reader }{reader} // hides the length
		}
		req, err := http.NewRequest("POST", c.url, reader)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		// Forged headers are removed before the first route lookup.
		req.Header.Set(wire.TokensHeader, "7")
		req.Header.Set(wire.ModelHeader, "z")
		resp, err := c.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, resp.Header.Get("x-replica"), string(text)
	}
	const bytesPerToken = 4
	for _, x := range []struct {
		host, model string
		bytes       int
		want        string
	}{
		{"any.example", "m", 1000*bytesPerToken - 1, "a"},
		{"any.example", "m", 1000 * bytesPerToken, "b"},
		{"any.example", "m", 220 << 10, "b"},
		{"any.example", "z", 5, "q"},
		{"any.example", "z", 220 << 10, "q"},
		{"m.example", "m", 10, "a"},
		{"m.example:8080", "m", 220 << 10, "b"},
	} {
		for _, chunked := range []bool{false, true} {
			if status, replica, text := ask(x.host, x.model, x.bytes, chunked); status != 200 || replica != x.want {
				t.Errorf("%s, %s, %d bytes, chunked %t: %d from %q, want 200 from %s: %.200s", x.host, x.model, x.bytes, chunked, status, replica, x.want, text)
			}
		}
	}
	status, _, text := ask("any.example", "unknown", 5, false)
	var refusal struct {
		Error struct{ Message, Type, Param, Code string }
	}
	if err := json.Unmarshal([]byte(text), &refusal); err != nil || status != 404 || refusal.Error.Code != "model_not_found" {
		t.Errorf("unknown model: %d, %v, %s", status, err, text)
	}
	// Without the service, requests whose host name selects the model are
	// served by size, and the others are refused.
	stop()
	for _, x := range []struct {
		bytes int
		want  string
	}{{100, "a"}, {220 << 10, "b"}} {
		if status, replica, text := ask("m.example", "m", x.bytes, false); status != 200 || replica != x.want {
			t.Errorf("without estimator, %d bytes: %d from %q, want 200 from %s: %.200s", x.bytes, status, replica, x.want, text)
		}
	}
	if status, _, _ := ask("any.example", "m", 5, false); status != 404 {
		t.Errorf("without estimator, no model: %d", status)
	}
}
