package frontend

import (
	"io"
	"net/http"
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
		rescues, served := make(chan Rescue, 1), make(chan Served, 1)
		f, _ := newRescueFleet(t, 2, func(c *Config) {
			c.Tracer, c.OnRescue, c.OnServed = tracer, func(r Rescue) { rescues <- r }, func(s Served) { served <- s }
		})
		f.setPace(20 * time.Millisecond)
		req := testkit.Must(http.NewRequest("POST", "http://"+f.servers[0].url+"/v1/completions", strings.NewReader(longRequest)))
		req.Header.Set("Traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
		req.Header.Set("X-Request-Id", "q\xff")
		done := make(chan struct{})
		go func() {
			defer close(done)
			resp := testkit.Must(f.servers[0].client.Do(req))
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}()
		s := f.waitForStream(3)
		h, leg, _ := f.findLeg(s.id)
		f.engines[0].killAll()
		rescue := <-rescues
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
