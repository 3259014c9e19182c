package proxy

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/api"
)

// TestFailover kills the only replica of a stage while no control plane reports it. The
// next stage serves, and no request fails.
func TestFailover(t *testing.T) {
	f := newFleet(t, 2, nil)
	f.see("POST", "/", "", bytes.NewReader(prompt("m", 100)))
	f.control.stop()
	f.fronts[0].kill()
	r := f.proxy.replicas.get(f.fronts[0].address, f.proxy.state.Load().link)
	testkit.WaitFor(t, "the end of all connections", func() bool { return r.count() == 0 && !f.proxy.Connected() })
	for range 50 {
		if _, s := f.see("POST", "/", "", bytes.NewReader(prompt("m", 100))); s.By != "r1" {
			t.Fatalf("%s serves", s.By)
		}
	}
	if n := testutil.ToFloat64(f.proxy.metrics.ejections.WithLabelValues("cascade/m/s0/rr")); n < 1 {
		t.Error("the dead replica was not passed over")
	}
	// A replica that is passed over costs no retries.
	before := testutil.ToFloat64(f.proxy.metrics.retries.WithLabelValues("cascade/m/s0/rr"))
	if before > 10 {
		t.Errorf("%v retries for 50 requests", before)
	}
}

// TestReturn checks that a replica which was passed over is used again when it is back.
func TestReturn(t *testing.T) {
	f := newFleet(t, 2, nil)
	servedBy := func(id string) bool {
		_, s := f.see("POST", "/", "", bytes.NewReader(prompt("m", 50)))
		return s.By == id
	}
	f.proxy.replicas.failed.add(f.fronts[0].address, time.Now())
	if !servedBy("r1") {
		t.Error("a replica that is passed over serves")
	}
	testkit.WaitFor(t, "the return of r0", func() bool { return servedBy("r0") })
	// An answer of the replica's own is passed on, whatever it says.
	if resp, _ := f.send("POST", "/status/503", "", bytes.NewReader(prompt("m",
		50))); resp.StatusCode != 503 || !servedBy("r0") {
		t.Errorf("status %d", resp.StatusCode)
	}
}

// TestRetryBeforeFirstByteOnly checks that the client sees the failure of a front that
// dies in the middle of a response.
func TestRetryBeforeFirstByteOnly(t *testing.T) {
	f := newFleet(t, 4, nil)
	resp, err := f.client.Get(f.url + "/abort")
	testkit.NoError(t, err)
	b, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(b) != "half" || err == nil {
		t.Errorf("got %q and error %v, want the half and a cut", b, err)
	}
	if total := f.hits(); total != 1 {
		t.Errorf("%d fronts saw the request", total)
	}
}

func withIdle(idle time.Duration) edit {
	return func(r *api.Routing) { r.Proxy.IdleTimeout = durationpb.New(idle) }
}

func TestTimeouts(t *testing.T) {
	f := newFleet(t, 2, nil)
	read := func(path string) (status int, body []byte, err error) {
		resp, err := f.client.Post(f.url+path, "", bytes.NewReader(prompt("m", 100)))
		if err != nil {
			return 0, nil, err
		}
		defer resp.Body.Close()
		body, err = io.ReadAll(resp.Body)
		return resp.StatusCode, body, err
	}
	wrong := func(idle time.Duration) string {
		if status, b, err := read("/hang"); status != 504 || err != nil || failureOf(t, b).Code != codeTimeout {
			return fmt.Sprintf("no answer: %d %s, %v", status, b, err)
		}
		if status, b, err := read("/sse?n=2&gap=1h"); status != 200 || err == nil {
			return fmt.Sprintf("a silent stream was not cut: %d %s", status, b)
		}
		// Events keep a stream open beyond the idle timeout.
		if status, b, err := read(fmt.Sprintf("/sse?n=20&gap=%v",
			idle/10)); status != 200 || err != nil || !bytes.Contains(b, []byte("[DONE]")) {
			return fmt.Sprintf("a lively stream was cut: %d %s, %v", status, b, err)
		}
		return ""
	}
	// A busy machine may pause for longer than a short limit; then the test tries a longer one.
	for idle := 100 * time.Millisecond; ; idle *= 4 {
		f.publish(f.view, withIdle(idle))
		what := wrong(idle)
		if what == "" {
			return
		}
		if idle > 5*time.Second {
			t.Fatal(what)
		}
	}
}

// TestShortBodyBlamesNoReplica checks that a client which ends its body before its length, which over HTTP/2 does not end
// its request, is answered 400, and that the proxy neither passes the replica over nor counts a failure of it.
func TestShortBodyBlamesNoReplica(t *testing.T) {
	f := newFleet(t, 2, nil)
	framer := dialHTTP2(t, strings.TrimPrefix(f.url, "http://"))
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	framer.request(1, false, "/", "content-length", "1000")
	testkit.NoError(t, framer.WriteData(1, false, []byte("{")))
	testkit.WaitFor(t, "the request", func() bool { return f.fronts[0].hits.Load() == 1 })
	testkit.NoError(t, framer.WriteData(1, true, []byte("}")))
	for status := ""; status == ""; {
		switch frame := testkit.Must(framer.ReadFrame()).(type) {
		case *http2.MetaHeadersFrame:
			if status = frame.PseudoValue("status"); status != "400" {
				t.Errorf("status %s, want 400", status)
			}
		case *http2.RSTStreamFrame:
			t.Fatal("the request was reset:", frame.ErrCode)
		}
	}
	f.waitForNoRequests()
	if avoided := f.proxy.replicas.failed.avoided(time.Now()); avoided != nil {
		t.Errorf("r0 is passed over: %v", avoided(f.fronts[0].address))
	}
	stage := f.proxy.state.Load().stages[stageKey{"m", 0}]
	if n := stage.samples()[f.fronts[0].address]; n.failed != 0 || n.active != 0 || n.issued != 1 {
		t.Errorf("the load report says %+v", n)
	}
}

func TestCircuitBreaker(t *testing.T) {
	f := newFleet(t, 2, func(r *api.Routing) { r.Proxy.MaxRequests = 1 })
	resp, err := f.client.Post(f.url+"/sse?n=5&gap=1h", "", bytes.NewReader(prompt("m", 100)))
	testkit.NoError(t, err)
	over, b := f.send("POST", "/", "", bytes.NewReader(prompt("m", 100)))
	if over.StatusCode != 503 || over.Header.Get("X-Envoy-Overloaded") != "true" || failureOf(t,
		b).Code != codeOverload {
		t.Errorf("%d %s", over.StatusCode, b)
	}
	resp.Body.Close()
	f.waitForNoRequests()
	f.see("POST", "/", "", bytes.NewReader(prompt("m", 100)))
}

// TestRefusedStreamsAreRepeated checks that refused streams are repeated with their
// bodies: a front that drains or has lost its engine costs only a retry.
func TestRefusedStreamsAreRepeated(t *testing.T) {
	f := newFleet(t, 4, nil)
	f.replaceFirst(answerBodies(t, func(f *http2.Framer, id uint32) bool {
		f.WriteRSTStream(id, http2.ErrCodeRefusedStream)
		return true
	}), nil)
	f.requireRepeats("/", "refused stream", 20)
}

// replaceFirst puts another address in the place of r0's, and edits the plan.
func (f *fleet) replaceFirst(address string, edit edit) {
	f.t.Helper()
	v := f.view
	v.Endpoints = slices.Clone(v.Endpoints)
	v.Endpoints[0].Address = address
	f.publish(v, edit)
}

// TestLostRequestsAreRepeated checks requests that a replica has read whole when its front end dies,
// or stops without a sign, as a stopped process does: pings find out, and other replicas serve what
// it had not begun to answer.
func TestLostRequestsAreRepeated(t *testing.T) {
	for name, dies := range map[string]bool{"dies": true, "hangs": false} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 4, withPings)
			f.replaceFirst(answerBodies(t, func(*http2.Framer, uint32) bool {
				if !dies {
					<-t.Context().Done() // it answers no pings either
				}
				return false
			}), withPings)
			f.requireRepeats("/", "connection reset", 2)
		})
	}
}

// withPings makes a connection that is silent for three seconds be noticed.
func withPings(r *api.Routing) { r.Proxy.PingTimeout = durationpb.New(time.Second) }

// TestRefusedAnswersAreRepeated checks that requests are repeated with their bodies
// after a refusal response: a front whose engine has just died refuses them, and
// another replica serves them. If all fronts refuse, the client gets the error.
func TestRefusedAnswersAreRepeated(t *testing.T) {
	f := newFleet(t, 4, nil)
	f.requireRepeats("/refused-by-r0", "refused answer", 20)
	if resp, _ := f.send("POST", "/refused", "", bytes.NewReader(prompt("m",
		3000))); resp.StatusCode != 503 || resp.Header.Get(length.RefusedHeader) == "" {
		t.Errorf("refused by all: %s", resp.Status)
	}
}

// requireRepeats sends requests that r0 refuses, and checks that other replicas get them
// whole and that the failures are counted.
func (f *fleet) requireRepeats(path, failure string, requests int) {
	f.t.Helper()
	counted := func() float64 {
		return testutil.ToFloat64(f.proxy.metrics.failures.WithLabelValues("cascade/m/s0/rr", failure))
	}
	for i := 0; i < requests || counted() < 2 && i < 1000; i++ {
		f.proxy.replicas.failed.all.Store(nil) // tried again at once
		var body io.Reader = bytes.NewReader(prompt("m", 3000))
		if i%2 == 0 {
			body = chunked{body}
		}
		if _, s := f.see("POST", path, "", body); s.Bytes != 3000 || s.By == "r0" {
			f.t.Fatalf("%s got %d bytes", s.By, s.Bytes)
		}
	}
	if n := counted(); n < 2 {
		f.t.Errorf("%v refusals seen", n)
	}
}

// TestBodyBeyondTheLimit checks that a request whose body is too large to be kept is sent once.
func TestBodyBeyondTheLimit(t *testing.T) {
	f := newFleet(t, 4, func(r *api.Routing) { r.Proxy.BodyLimit = 1000 })
	for range 20 {
		before := f.hits()
		resp, _ := f.send("POST", "/refused", "", bytes.NewReader(prompt("m", 3000)))
		if n := f.hits() - before; resp.StatusCode != 503 || resp.Header.Get(length.RefusedHeader) == "" || n != 1 {
			t.Errorf("%s, sent %d times", resp.Status, n)
		}
	}
}

// TestAttackAddresses checks that errors do not show clients the addresses of upstreams.
func TestAttackAddresses(t *testing.T) {
	f := newFleet(t, 2, withIdle(100*time.Millisecond))
	check := func(path string) {
		t.Helper()
		resp, b := f.send("POST", path, "", bytes.NewReader(prompt("m", 100)))
		answer := fmt.Sprint(resp.Header, string(b))
		if resp.StatusCode < 500 || strings.Contains(answer, "127.0.0.1") {
			t.Errorf("%s: %d %s", path, resp.StatusCode, answer)
		}
	}
	check("/hang")
	check("/cut")
	for _, front := range f.fronts {
		front.kill()
	}
	check("/") // a busy machine may reach the idle timeout here, too
}
