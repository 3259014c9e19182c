package endpointpicker

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/processing"
	"github.com/cascadeinfer/cascade/xds/internal/processing/processingtest"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// handView returns a view of models with one replica each, without a control plane.
func handView(names ...string) *View {
	plan := new(resources.Routing)
	for i, name := range names {
		r := resources.RoutedReplica{At: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 8000)}
		r.Weight = 1
		plan.Models = append(plan.Models, resources.RoutedModel{
			LengthMeta: resources.LengthMeta{Model: name}, Replicas: []resources.RoutedReplica{r},
			Plan: policies.Plan{Model: name, Stages: []policies.Stage{{High: policies.Unbounded}}},
		})
	}
	return NewView(plan)
}

// TestLateBody checks that a body that does not arrive in time is refused and gives its memory
// back, and that a response may take longer than that.
func TestLateBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testkit.Must(New(Config{}))
		s.view.Store(handView("m", "n"))
		ctx, cancel := context.WithCancel(t.Context())
		f := &processingtest.Stream{Ctx: ctx, Requests: make(chan *extproc.ProcessingRequest, 2)}
		f.Requests <- headers(false, ":authority", "else.test")
		f.Requests <- processingtest.Body(`{"prompt":`, false)
		began := time.Now()
		testkit.NoError(t, s.Process(f))
		if took := time.Since(began); took != processing.DefaultDeadline || len(f.Sent) != 1 || f.Sent[0].GetImmediateResponse().GetStatus().GetCode() != 408 {
			t.Errorf("after %v: %v, want 408 after %v", took, f.Sent, processing.DefaultDeadline)
		}
		if s.budget.Held() != 0 {
			t.Errorf("%d bytes are held after the request", s.budget.Held())
		}
		cancel()
		s.view.Store(handView("m"))
		ctx, cancel = context.WithCancel(t.Context())
		defer cancel()
		f = &processingtest.Stream{Ctx: ctx, Requests: make(chan *extproc.ProcessingRequest)}
		go func() {
			f.Requests <- headers(true)
			time.Sleep(2 * processing.DefaultDeadline)
			f.Requests <- &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extproc.HttpHeaders{}}}
			close(f.Requests)
		}()
		testkit.NoError(t, s.Process(f))
		if len(f.Sent) != 2 || f.Sent[1].GetResponseHeaders() == nil {
			t.Errorf("answers %v, want response headers last", f.Sent)
		}
		cancel()
		synctest.Wait()
	})
}

// TestMemory checks that bodies beyond the memory of all of them are refused with 429, and
// that memory comes back when a request is answered or cancelled.
func TestMemory(t *testing.T) {
	s := testkit.Must(New(Config{BodyMemory: 100}))
	s.view.Store(handView("m", "n"))
	open := func() *exchange {
		x := &exchange{server: s, view: s.view.Load()}
		if out := testkit.Must(x.Step(headers(false))); len(out) != 0 {
			t.Fatalf("answers %v before the body", out)
		}
		return x
	}
	x, y := open(), open()
	testkit.Must(x.Step(processingtest.Body(strings.Repeat("x", 60), false)))
	out := testkit.Must(y.Step(processingtest.Body(strings.Repeat("x", 60), false)))
	if len(out) != 1 || out[0].GetImmediateResponse().GetStatus().GetCode() != 429 {
		t.Errorf("answers %v, want 429", out)
	}
	x.release()
	if s.budget.Held() != 0 {
		t.Errorf("%d bytes are held", s.budget.Held())
	}
	z := open()
	testkit.Must(z.Step(processingtest.Body(strings.Repeat("x", 60), false)))
	if s.budget.Held() != 60 {
		t.Errorf("%d bytes are held, want 60", s.budget.Held())
	}
	z.release()
}

// TestRefusedBody checks that a refusal gives back the memory of what was held.
func TestRefusedBody(t *testing.T) {
	s := testkit.Must(New(Config{MaxBody: 100}))
	s.view.Store(handView("m", "n"))
	x := &exchange{server: s, view: s.view.Load()}
	testkit.Must(x.Step(headers(false)))
	testkit.Must(x.Step(processingtest.Body(strings.Repeat("x", 60), false)))
	if s.budget.Held() != 60 {
		t.Errorf("%d bytes are held, want 60", s.budget.Held())
	}
	if out := testkit.Must(x.Step(processingtest.Body(strings.Repeat("x", 60), false))); out[0].GetImmediateResponse().GetStatus().GetCode() != 413 || s.budget.Held() != 0 {
		t.Errorf("answers %v and %d bytes held, want 413 and none", out, s.budget.Held())
	}
}

// TestSentBody checks that a body's memory is given back once the body was sent, however long the
// response takes.
func TestSentBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testkit.Must(New(Config{}))
		s.view.Store(handView("m", "n"))
		f := &processingtest.Stream{Ctx: t.Context(), Requests: make(chan *extproc.ProcessingRequest)}
		done := make(chan error, 1)
		go func() { done <- s.Process(f) }()
		f.Requests <- headers(false)
		f.Requests <- processingtest.Body(`{"model":"m",`, false)
		synctest.Wait()
		if s.budget.Held() == 0 {
			t.Error("no memory is held for the beginning of a body")
		}
		f.Requests <- processingtest.Body(`"prompt":"x"}`, true)
		synctest.Wait()
		if s.budget.Held() != 0 || len(f.Sent) != 2 {
			t.Errorf("%d bytes are held after answers %v", s.budget.Held(), f.Sent)
		}
		close(f.Requests)
		testkit.NoError(t, <-done)
	})
}

// TestPlanChangesDuringUpload checks that the endpoints are picked by the plan at the end of the
// body, not by that of its beginning.
func TestPlanChangesDuringUpload(t *testing.T) {
	s := testkit.Must(New(Config{}))
	s.view.Store(handView("m", "n"))
	pick := func(after *View) string {
		s.view.Store(handView("m", "n"))
		x := &exchange{server: s, view: s.view.Load()}
		testkit.Must(x.Step(headers(false)))
		s.view.Store(after)
		return describe(t, testkit.Must(x.Step(processingtest.Body(`{"model":"m","prompt":"xxxx"}`, true)))[0])
	}
	if got, want := pick(handView("n", "m")), "headers: to=.2 x-cascade-tokens=1 x-gateway-model-name=m reroute"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := pick(handView("n")); !strings.HasPrefix(got, "503:") {
		t.Errorf("%q for a model that is gone, want 503", got)
	}
}

// TestOnlyModel checks that a fleet's only model needs no name, whatever host name the gateway
// has.
func TestOnlyModel(t *testing.T) {
	p := startPlane(t, Config{})
	v := twoStages()
	v.Models[0].Hosts = []string{"m.test"}
	p.publish(v)
	got := talk(t, p.client, headers(false, ":authority", "gateway.example", "content-length", "10"))
	if len(got) != 1 || !strings.HasPrefix(got[0], "headers: to=.") {
		t.Errorf("answers %q, want a destination before the body", got)
	}
}

// TestHealth checks that the health service says when there are stages to pick from.
func TestHealth(t *testing.T) {
	h := health.NewServer()
	p := startPlane(t, Config{Health: h, Model: "m"})
	c := healthpb.NewHealthClient(p.conn)
	check := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, name := range []string{"", "inference-extension", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "liveness"} {
			want := want
			if name == "liveness" {
				want = healthpb.HealthCheckResponse_SERVING
			}
			if r := testkit.Must(c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})); r.Status != want {
				t.Errorf("service %q is %v, want %v", name, r.Status, want)
			}
		}
	}
	check(healthpb.HealthCheckResponse_NOT_SERVING)
	p.publish(twoStages())
	check(healthpb.HealthCheckResponse_SERVING)
}

// TestPoolModel checks that the model of the pool wins, and that requests are refused while
// the fleet does not have it.
func TestPoolModel(t *testing.T) {
	p := startPlane(t, Config{Model: "n/2"})
	p.publish(twoStages())
	if got := talk(t, p.client, headers(true)); !strings.HasPrefix(got[0], "503:") {
		t.Errorf("answers %q, want 503", got)
	}
	p.publish(withSecondModel(twoStages()))
	got := talk(t, p.client, headers(false, ":authority", "m.test", "content-length", "10"))
	if want := []string{"headers: to=.9 x-cascade-tokens=5 x-gateway-model-name=n/2 reroute"}; !slices.Equal(got, want) {
		t.Errorf("answers %q, want %q", got, want)
	}
}

// TestCancelledStreams cancels streams between any two messages; goleak reports goroutines that
// they leave.
func TestCancelledStreams(t *testing.T) {
	p := startPlane(t, Config{})
	p.publish(withSecondModel(twoStages()))
	for i := range 30 {
		ctx, cancel := context.WithCancel(t.Context())
		stream := testkit.Must(p.client.Process(ctx))
		if i%3 > 0 {
			_ = stream.Send(headers(false, ":authority", "else.test"))
		}
		if i%3 > 1 {
			_ = stream.Send(processingtest.Body(`{"prompt":"x"`, false))
		}
		cancel()
	}
	testkit.WaitFor(t, "the end of all streams", func() bool {
		return testutil.ToFloat64(p.picker.metrics.streams) == 0 && p.picker.budget.Held() == 0
	})
}

// FuzzExchange passes any messages to one exchange: it must answer or refuse, never panic, and
// never pick an address that the hint does not contain.
func FuzzExchange(f *testing.F) {
	s := testkit.Must(New(Config{MaxBody: 1000}))
	s.view.Store(handView("m", "n"))
	hinted := headers(true, ":authority", "x")
	hinted.MetadataContext = metadata(subsetNamespace, subsetKey, structpb.NewStringValue("10.0.0.1:8000,10.0.0.2:8000"))
	for _, m := range []*extproc.ProcessingRequest{headers(false, "content-length", "5"), hinted, processingtest.Body(`{"model":"m"}`, true), processingtest.Body("x", false), {}} {
		data := testkit.Must(proto.Marshal(m))
		f.Add(data, data, data)
	}
	f.Fuzz(func(t *testing.T, first, second, third []byte) {
		x := &exchange{server: s, view: s.view.Load()}
		defer x.release()
		for i, data := range [][]byte{first, second, third} {
			var r extproc.ProcessingRequest
			if proto.Unmarshal(data, &r) != nil {
				return
			}
			out, err := x.Step(&r)
			if err != nil && len(out) > 0 {
				t.Fatalf("message %d: answers %v and error %v", i, out, err)
			}
			for _, a := range x.picked.addresses {
				if !x.subset.Contains(netip.MustParseAddrPort(a)) {
					t.Fatalf("message %d: picked %s outside the subset", i, a)
				}
			}
			if err != nil || x.phase == refused {
				return
			}
		}
	})
}
