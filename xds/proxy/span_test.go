package proxy

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestSpans checks that each request is one span of its client's trace, below which its
// replica goes on, whoever answers it; a client without a trace gets one.
func TestSpans(t *testing.T) {
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	spans := tracetest.NewSpanRecorder()
	c, fronts := newControl(t), []*front{newFront(t, "r0"), newFront(t, "r1")}
	v := twoStages(fronts)
	v.Settings.Listen = "127.0.0.1:0"
	c.set(v, nil)
	p := c.runProxy(t, Config{Tracer: sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)).Tracer("test")})
	<-p.Ready()
	f := fleet{t: t, url: "http://" + p.Addr().String(), client: http.Client{Transport: &http.Transport{}}}
	t.Cleanup(f.client.CloseIdleConnections)
	_, seen := f.see("POST", "/v1/completions", "", bytes.NewReader(prompt("m", 100)), "Traceparent",
		"00-"+trace+"-"+parent+"-01", "X-Request-Id", "q")
	_, alone := f.see("POST", "/v1/completions", "", bytes.NewReader(prompt("m", 100)))
	fronts[0].kill()
	fronts[1].kill()
	f.send("PUT", "/v1/completions%ff", "", bytes.NewReader(prompt("m", 100)), "X-Request-Id", strings.Repeat("ü",
		64)+"\xff")
	f.send("PUT", "/v1/completions%ff", "", bytes.NewReader(prompt("m", 100)), "X-Request-Id",
		"\xff"+strings.Repeat("ü", 64))
	testkit.WaitFor(t, "the last span", func() bool { return len(spans.Ended()) == 4 }) // it ends after the answer
	ended := spans.Ended()
	attributes := func(i int) map[string]string {
		out := map[string]string{}
		for _, a := range ended[i].Attributes() {
			out[string(a.Key)] = a.Value.Emit()
		}
		return out
	}
	first := ended[0]
	if got := first.SpanContext().TraceID().String(); got != trace || first.Parent().SpanID().String() != parent {
		t.Errorf("the span is of the trace %s, below %s", got, first.Parent().SpanID())
	}
	if got, want := seen.Header.Get("Traceparent"),
		"00-"+trace+"-"+first.SpanContext().SpanID().String()+"-01"; got != want {
		t.Errorf("the replica continues %s, want %s", got, want)
	}
	if a := attributes(0); a["http.response.status_code"] != "200" || a["cascade.request_id"] != "q" || a["cascade.cluster"] != "cascade/m/s0/rr" || a["server.address"] == "" || first.Name() != "proxy POST" {
		t.Errorf("%s: %v", first.Name(), a)
	}
	if got := alone.Header.Get("Traceparent"); !strings.Contains(got,
		ended[1].SpanContext().TraceID().String()) || strings.Contains(got, trace) {
		t.Errorf("a request without a trace is continued as %q", got)
	}
	if a := attributes(2); a["http.response.status_code"] != "503" || ended[2].Name() != "proxy other" || ended[2].Status().Description == "" {
		t.Errorf("%s: %v, %v", ended[2].Name(), a, ended[2].Status())
	}
	for _, s := range ended {
		for _, a := range s.Attributes() {
			if text := a.Value.Emit(); !utf8.ValidString(text) {
				t.Errorf("%s: %s is %q, with which no exporter sends the batch", s.Name(), a.Key, text)
			}
		}
	}
	var stage dto.Metric
	testkit.NoError(t, p.metrics.duration.WithLabelValues("cascade/m/s0/rr").(prometheus.Histogram).Write(&stage))
	exemplars := map[string]bool{}
	for _, b := range stage.GetHistogram().GetBucket() {
		for _, l := range b.GetExemplar().GetLabel() {
			exemplars[l.GetName()+" "+l.GetValue()] = true
		}
	}
	if id := ended[1].SpanContext().TraceID().String(); !exemplars["trace_id "+trace] && !exemplars["trace_id "+id] {
		t.Errorf("the exemplars of the stage's latencies are %v", exemplars)
	}
	// Without a tracer the client's own trace passes.
	g := newFleet(t, 2, nil)
	if _, seen := g.see("POST", "/v1/completions", "", bytes.NewReader(prompt("m", 100)), "Traceparent",
		"00-"+trace+"-"+parent+"-01"); seen.Header.Get("Traceparent") != "00-"+trace+"-"+parent+"-01" {
		t.Errorf("without tracing the replica sees %q", seen.Header.Get("Traceparent"))
	}
}
