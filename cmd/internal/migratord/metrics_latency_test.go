package migratord

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.opentelemetry.io/otel/trace"

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
)

// TestLatencies: a scraper that speaks OpenMetrics gets the traces of sampled requests, others get
// histograms alone.
func TestLatencies(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	traceID := testkit.Must(trace.TraceIDFromHex(id))
	sampled := trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled})
	l, registry := newLatencies("r0", "m"), adminserver.NewRegistry()
	registry.MustRegister(l.firstToken, l.perToken, l.stall)
	l.served(frontend.Served{FirstToken: 30 * time.Millisecond, PerToken: 12 * time.Millisecond, Span: sampled})
	l.served(frontend.Served{FirstToken: time.Minute}) // one token, no trace
	l.stalled(3*time.Millisecond, sampled)
	l.stalled(4*time.Millisecond, sampled.WithTraceFlags(0))
	scrape := func(accept string) string {
		r, w := httptest.NewRequest("GET", "/metrics", nil), httptest.NewRecorder()
		r.Header.Set("Accept", accept)
		adminserver.Handler(registry, func() string { return "" }).ServeHTTP(w, r)
		return w.Body.String()
	}
	open, plain := scrape("application/openmetrics-text;version=1.0.0"), scrape("text/plain;version=0.0.4")
	exemplar := ` # {trace_id="` + id + `"} `
	for line, traced := range map[string]bool{
		`cascade_migrator_first_token_seconds_bucket{model="m",replica="r0",le="0.04"} 1`:     true,
		`cascade_migrator_first_token_seconds_bucket{model="m",replica="r0",le="81.92"} 2`:    false,
		`cascade_migrator_time_per_token_seconds_bucket{model="m",replica="r0",le="0.015"} 1`: true,
		`cascade_migrator_time_per_token_seconds_count{model="m",replica="r0"} 1`:             false,
		`cascade_migrator_stall_seconds_bucket{model="m",replica="r0",le="0.005"} 2`:          true,
		`cascade_migrator_stall_seconds_count{model="m",replica="r0"} 2`:                      false,
	} {
		if !strings.Contains(plain, line+"\n") {
			t.Errorf("no line %s in text", line)
		}
		if got := strings.Contains(open, line+exemplar); got != traced {
			t.Errorf("%s: with an exemplar %v, want %v", line, got, traced)
		}
	}
	if strings.Contains(plain, "trace_id") {
		t.Error("exemplars in a format that has none")
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}
