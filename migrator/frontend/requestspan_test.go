package frontend

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	apitrace "go.opentelemetry.io/otel/trace"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestOneTraceARequest: the spans of a request at its front end, and of its legs at other
// migrators, belong to the trace that its client began; engines see it, and what executors
// need to continue it is with the stream, its legs and its rescue.
func TestOneTraceARequest(t *testing.T) {
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	synctest.Test(t, func(t *testing.T) {
		spans := tracetest.NewSpanRecorder()
		tracer := sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)).Tracer("test")
		rescued, served := make(chan Rescue, 1), make(chan Served, 1)
		f := newFleet(t, 2, rescues, configured(func(c *Config) {
			c.Tracer, c.OnRescue, c.OnServed = tracer, func(r Rescue) { rescued <- r }, func(s Served) { served <- s }
		}))
		f.setPace(20 * time.Millisecond)
		req := jsonRequest(f.url, "/v1/completions", longRequest, "Traceparent", "00-"+trace+"-00f067aa0ba902b7-01", "X-Request-Id", "q\xff")
		done := make(chan struct{})
		go func() {
			defer close(done)
			tryDo(f.client, req)
		}()
		s := f.waitForStream(3)
		h, leg, _ := f.findLeg(s.id)
		f.engines[0].killAll()
		rescue := <-rescued
		_, second, _ := f.findLeg(s.id)
		for name, parent := range map[string]string{"stream": h.Trace, "leg": leg.Trace, "rescue": rescue.Trace, "leg after the rescue": second.Trace,
			"first engine": f.engines[0].last.Load().Header.Get("Traceparent"), "second engine": f.engines[1].last.Load().Header.Get("Traceparent")} {
			if !strings.Contains(parent, trace) {
				t.Errorf("%s: traceparent %q", name, parent)
			}
		}
		<-done
		// Every token takes 20 ms, and the rescue some time more.
		if s := <-served; s.Span.TraceID().String() != trace || s.FirstToken < 20*time.Millisecond || s.FirstToken > time.Second || s.PerToken < 20*time.Millisecond || s.PerToken > time.Second {
			t.Errorf("served %+v, of trace %s", s, s.Span.TraceID())
		}
		f.requireIdle()
		f.requireEngineSpans(s, spans.Ended())
		var own, peer int
		spanOf := make(map[string]string) // by replica
		for _, span := range spans.Ended() {
			if span.SpanKind() == apitrace.SpanKindServer {
				spanOf[attributesOf(span)["cascade.replica"]] = span.SpanContext().SpanID().String()
			}
		}
		for _, span := range spans.Ended() {
			if got := span.SpanContext().TraceID().String(); got != trace {
				t.Errorf("span %s has the trace %s", span.Name(), got)
			}
			if span.SpanKind() != apitrace.SpanKindServer {
				continue // requireEngineSpans
			}
			attrs := attributesOf(span)
			switch attrs["cascade.replica"] {
			case "r0":
				own++
				if attrs["cascade.request"] != s.id || attrs["cascade.request_id"] != "q\uFFFD" || attrs["http.response.status_code"] != "200" || span.Parent().SpanID().String() != "00f067aa0ba902b7" {
					t.Errorf("the request's span: %v below %s", attrs, span.Parent().SpanID())
				}
			case "r1":
				peer++
				if parent := span.Parent().SpanID().String(); parent != spanOf["r0"] {
					t.Errorf("the leg's span is below %s, want the request's, %s", parent, spanOf["r0"])
				}
			}
		}
		if own != 1 || peer == 0 {
			t.Errorf("%d spans of the request, %d of its legs elsewhere", own, peer)
		}
	})
}

// requireEngineSpans checks that each call to an engine is a client span below the span of its request, or
// of the leg that a peer has sent; that the engine sees it as its parent; that it has the convention's
// attributes, when the first token came, and why the call ended.
func (f *fleet) requireEngineSpans(s *Stream, ended []sdk.ReadOnlySpan) {
	t := f.t
	t.Helper()
	calls, servers := map[string]sdk.ReadOnlySpan{}, map[string]sdk.ReadOnlySpan{} // by replica
	for _, span := range ended {
		of := servers
		if span.SpanKind() == apitrace.SpanKindClient {
			of = calls
		}
		of[attributesOf(span)["cascade.replica"]] = span
	}
	for i, replica := range []string{"r0", "r1"} {
		call, server := calls[replica], servers[replica]
		if call == nil || server == nil {
			t.Fatalf("%s: call %v, server %v", replica, call, server)
		}
		if call.Parent().SpanID() != server.SpanContext().SpanID() {
			t.Errorf("%s: the call's span is below %s, want %s", replica, call.Parent().SpanID(), server.SpanContext().SpanID())
		}
		if seen := f.engines[i].last.Load().Header.Get("Traceparent"); !strings.Contains(seen, call.SpanContext().SpanID().String()) {
			t.Errorf("%s: its engine sees the parent %s", replica, seen)
		}
		a := attributesOf(call)
		for key, want := range map[string]string{"gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "vllm", "gen_ai.request.max_tokens": "70",
			"cascade.leg": s.id + "#" + a["cascade.epoch"], "gen_ai.request.model": s.cfg.Request.Model} {
			if a[key] != want {
				t.Errorf("%s: %s is %q, want %q", replica, key, a[key], want)
			}
		}
		if events := call.Events(); len(events) != 1 || events[0].Name != firstTokenEvent || !events[0].Time.After(call.StartTime()) && i == 0 {
			t.Errorf("%s: events %v", replica, events)
		}
	}
	lost, second, whole := attributesOf(calls["r0"]), attributesOf(calls["r1"]), attributesOf(servers["r0"])
	if lost["cascade.continued_elsewhere"] != "true" || lost["gen_ai.response.finish_reasons"] != "" {
		t.Errorf("the lost call: %v", lost)
	}
	if second["cascade.continued_elsewhere"] != "false" || second["gen_ai.response.finish_reasons"] != `["length"]` {
		t.Errorf("the second call: %v", second)
	}
	if whole["gen_ai.usage.output_tokens"] != "70" || whole["gen_ai.usage.input_tokens"] == "" || whole["cascade.splices"] != "1" {
		t.Errorf("the request: %v", whole)
	}
}

// attributesOf returns a span's attributes as text.
func attributesOf(span sdk.ReadOnlySpan) map[string]string {
	all := map[string]string{}
	for _, a := range span.Attributes() {
		all[string(a.Key)] = a.Value.Emit()
	}
	return all
}

// TestLogsNameTheRequest: every line about a request has the id that its proxy gave it:
// of one that is refused, of one that is rescued and of one that is lost.
func TestLogsNameTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		f := newFleet(t, 2, rescues, configured(func(c *Config) { c.RescueTimeout, c.Logger = time.Second, log.Logger() }))
		send := func(id string) {
			tryDo(f.client, jsonRequest(f.url, "/v1/completions", longRequest, "X-Request-Id", id))
		}
		f.setPace(20 * time.Millisecond)
		done := make(chan struct{})
		go func() { defer close(done); send("rescued") }()
		f.waitForStream(3)
		f.engines[0].killAll()
		<-done
		f.rescuer.setTargets()
		f.engines[0].sendEvents("", true)
		send(strings.Repeat("refused", 100))
		var about int
		for line := range strings.Lines(log.String()) {
			for _, event := range []string{"stream lost its engine", "stream goes on at another replica", "engine was lost", "request not begun"} {
				if !strings.Contains(line, event) {
					continue
				}
				about++
				if !strings.Contains(line, "request_id=rescued ") && !strings.Contains(line, "request_id=refusedrefused") || !strings.Contains(line, " request=r0/") || len(line) > 1024 {
					t.Errorf("no id in %s", line)
				}
			}
		}
		if about < 3 {
			t.Errorf("%d lines are about requests:\n%s", about, &log)
		}
	})
}
