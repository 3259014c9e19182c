package proxy

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

func stageOf(by string) int {
	if by == "r0" || by == "r1" {
		return 0
	}
	return 1
}

// TestRoutesByLength sends one token less and one more than the boundary, with a
// content length, chunked, and with 220 KiB.
func TestRoutesByLength(t *testing.T) {
	f := newFleet(t, 4, nil)
	for _, n := range []int{400, 3996, 3999, 4000, 4004, 220 << 10} {
		want := 0
		if n >= 4000 {
			want = 1
		}
		resp, s := f.see("POST", "/v1/completions", "any.host:8080", bytes.NewReader(prompt("m", n)))
		if stageOf(s.By) != want || s.Bytes != n || s.Length != int64(n) {
			t.Errorf("%d bytes went to %s (%d bytes arrived), want stage %d", n, s.By, s.Bytes, want)
		}
		if got := s.Header.Get("X-Cascade-Tokens"); got != strconv.Itoa(n/4) {
			t.Errorf("%d bytes: x-cascade-tokens is %q", n, got)
		}
		if s.Header.Get("X-Gateway-Model-Name") != "m" {
			t.Errorf("the model is %q", s.Header.Get("X-Gateway-Model-Name"))
		}
		if got := resp.Header.Get("X-Cascade-Stage"); got != fmt.Sprintf("s%d", want) {
			t.Errorf("x-cascade-stage is %q", got)
		}
		if got := resp.Header.Get("X-Cascade-Epoch"); got != "1" {
			t.Errorf("x-cascade-epoch is %q", got)
		}
		if s.Proto != "HTTP/2.0" || s.Host != "any.host:8080" {
			t.Errorf("the front saw %s and host %s", s.Proto, s.Host)
		}
	}
	// Without a content length the text is counted.
	over := len(prompt("m", 0))
	for _, tokens := range []int{1, 999, 1000, 1001, 55 << 10} {
		want := 0
		if tokens >= 1000 {
			want = 1
		}
		_, s := f.see("POST", "/v1/completions", "", chunked{bytes.NewReader(prompt("m", over+4*tokens))})
		if stageOf(s.By) != want || s.Bytes != over+4*tokens || s.Header.Get("X-Cascade-Tokens") != strconv.Itoa(tokens) {
			t.Errorf("chunked, %d tokens: %s got %d bytes, header %q", tokens, s.By, s.Bytes,
				s.Header.Get("X-Cascade-Tokens"))
		}
	}
	// A request without a body goes to the last stage.
	_, s := f.see("GET", "/v1/models?x=a%2Fb", "", nil)
	if stageOf(s.By) != 1 || s.URI != "/v1/models?x=a%2Fb" || s.Header["X-Cascade-Tokens"] != nil {
		t.Errorf("a GET went to %+v", s)
	}
}

// TestTrustBoundary checks that the length headers of clients are removed.
func TestTrustBoundary(t *testing.T) {
	f := newFleet(t, 4, nil)
	resp, s := f.see("POST", "/", "", bytes.NewReader(prompt("m", 8000)),
		"x-cascade-tokens", "5", "X-Cascade-Tokens", "7", "x-cascade-anything", "1", "X-CASCADE-PREFIX", "1", "x-gateway-model-name", "other",
		"Connection", "X-Private, close", "X-Private", "1", "X-Kept", "1", "X-Kept", "2")
	if stageOf(s.By) != 1 || !slices.Equal(s.Header["X-Cascade-Tokens"],
		[]string{"2000"}) || s.Header["X-Cascade-Anything"] != nil || s.Header["X-Cascade-Prefix"] != nil {
		t.Errorf("forged headers: %s, %v", s.By, s.Header)
	}
	if got := resp.Header["Endpoint-Load-Metrics"]; got != nil || resp.Header.Get("X-By") == "" {
		t.Errorf("the client sees the replica's load: %v", got)
	}
	if s.Header["X-Private"] != nil || !slices.Equal(s.Header["X-Kept"], []string{"1", "2"}) {
		t.Errorf("connection headers: %v", s.Header)
	}
	if len(s.Header.Get("X-Request-Id")) != 36 || s.Header.Get("X-Forwarded-For") != "127.0.0.1" || s.Header.Get("X-Forwarded-Proto") != "http" {
		t.Errorf("forwarding headers: %v", s.Header)
	}
	if s.Header["Accept-Encoding"] != nil {
		t.Errorf("the proxy asks for encodings: %v", s.Header)
	}
}

// manyModels adds model n with its own host.
func manyModels(v resources.View) resources.View {
	v.Models = append(slices.Clone(v.Models), resources.Model{Name: "n/2", Context: 8192, Hosts: []string{"n.example"}})
	e := v.Endpoints[0]
	e.ID, e.Model, e.Address = "n0", "n/2", v.Endpoints[3].Address
	v.Endpoints = append(slices.Clone(v.Endpoints[:3]), e)
	v.Plans = []policies.Plan{{Model: "m", Epoch: 1, Stages: []policies.Stage{{Low: 0, High: 1000,
		Replicas: []policies.ReplicaID{"r0", "r1"}}, {Low: 1000, High: policies.Unbounded,
		Replicas: []policies.ReplicaID{"r2"}}}},
		policies.OneStagePlan("n/2", []policies.ReplicaID{"n0"})}
	return v
}

func TestManyModels(t *testing.T) {
	f := newFleet(t, 4, nil)
	f.publish(manyModels(f.view), nil)
	over := len(prompt("m", 0))
	for tokens, want := range map[int]string{999: "s0", 1000: "s1"} {
		resp, s := f.see("POST", "/", "x", bytes.NewReader(prompt("m", over+4*tokens)))
		if resp.Header.Get("X-Cascade-Stage") != want || s.Header.Get("X-Gateway-Model-Name") != "m" || s.Bytes != over+4*tokens {
			t.Errorf("%d tokens: %v", tokens, s)
		}
	}
	for _, host := range []string{"x", "n.example:80"} {
		if _, s := f.see("POST", "/", host, bytes.NewReader(prompt("n/2",
			100))); s.By != "r3" || s.Header.Get("X-Gateway-Model-Name") != "n/2" {
			t.Errorf("host %s, model n/2: %v", host, s)
		}
	}
	for _, body := range []string{string(prompt("unknown", 50)), "not JSON", ""} {
		resp, b := f.send("POST", "/", "x", strings.NewReader(body))
		if resp.StatusCode != 404 || failureOf(t,
			b).Code != "model_not_found" || resp.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%q: %d %s", body, resp.StatusCode, b)
		}
	}
	for _, body := range []io.Reader{bytes.NewReader(make([]byte, 16<<20+1)), chunked{bytes.NewReader(make([]byte,
		17<<20))}} {
		resp, b := f.send("POST", "/", "x", body)
		if resp.StatusCode != 413 || failureOf(t, b).Code != codeTooLarge {
			t.Errorf("17 MiB without a model: %d %s", resp.StatusCode, b)
		}
	}
	// With a host of its own, the model's bodies need not be buffered.
	if _, s := f.see("POST", "/", "n.example", bytes.NewReader(make([]byte, 17<<20))); s.Bytes != 17<<20 {
		t.Errorf("17 MiB: %d arrived", s.Bytes)
	}
}

func TestErrorsNameTheReason(t *testing.T) {
	f := newFleet(t, 4, nil)
	v := manyModels(f.view)
	for i := range v.Endpoints[:3] {
		v.Endpoints[i].Health, v.Endpoints[i].Address = resources.Unhealthy, fmt.Sprintf("127.0.0.1:%d", i+101)
	}
	f.publish(v, nil)
	for _, c := range []struct {
		body   string
		status int
		code   string
		names  string
	}{
		{string(prompt("m", 100)), 503, codeUnreachable, `"cascade/m/s0/rr"`},
		{string(prompt("x", 100)), 404, "model_not_found", "model"},
	} {
		resp, b := f.send("POST", "/", "", strings.NewReader(c.body))
		if e := failureOf(t, b); resp.StatusCode != c.status || e.Code != c.code || !strings.Contains(e.Message, c.names) ||
			(resp.Header.Get("Retry-After") == "1") != (c.status == 503) {
			t.Errorf("%s: %d %s", c.body, resp.StatusCode, b)
		}
	}
	if got := testutil.ToFloat64(f.proxy.metrics.requests.WithLabelValues(noCluster, "404")); got != 1 {
		t.Errorf("%v requests counted as 404", got)
	}
}

// TestWeights checks that new requests are divided by the weights.
func TestWeights(t *testing.T) {
	f := newFleet(t, 2, nil)
	v := f.view
	v.Endpoints = slices.Clone(v.Endpoints)
	v.Plans = []policies.Plan{policies.OneStagePlan("m", []policies.ReplicaID{"r0", "r1"})}
	v.Endpoints[0].Weight, v.Endpoints[1].Weight = 30, 10
	f.publish(v, nil)
	for range 400 {
		f.see("GET", "/", "", nil)
	}
	if n := f.fronts[0].hits.Load(); n < 260 || n > 340 {
		t.Errorf("weight 30 of 40 got %d of 400", n)
	}
}
