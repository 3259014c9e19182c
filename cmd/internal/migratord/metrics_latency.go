package migratord

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/cascadeinfer/cascade/migrator/frontend"
)

// Buckets of a migrator's histograms in seconds. A queue may delay the first token for minutes; a
// token takes from milliseconds to about a second; a stall is that of a freeze, or of a prompt that is
// computed anew.
var (
	firstTokenBuckets = prometheus.ExponentialBuckets(0.005, 2, 16)
	perTokenBuckets   = []float64{.001, .0025, .005, .01, .015, .02, .03, .04, .05, .075, .1, .15, .2, .3, .5, 1, 2.5}
	stallBuckets      = []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
)

// latencies are the histograms of a migrator. Where a request is traced, its observation is an exemplar
// with the id of its trace.
type latencies struct {
	firstToken, perToken, stall prometheus.Histogram
}

func newLatencies(replica, model string) *latencies {
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "cascade", Subsystem: "migrator", Name: name, Help: help,
			ConstLabels: prometheus.Labels{"replica": replica, "model": model}, Buckets: buckets})
	}
	return &latencies{
		firstToken: histogram("first_token_seconds", "Time from a client's request to the first event of its answer, of answers that are streams at the engine.", firstTokenBuckets),
		perToken:   histogram("time_per_token_seconds", "Mean time between the tokens of an answer after the first, migrations and rescues included; one observation per request.", perTokenBuckets),
		stall:      histogram("stall_seconds", "Time without tokens during a migration or rescue.", stallBuckets),
	}
}

// served records a request that has ended.
func (l *latencies) served(s frontend.Served) {
	observe(l.firstToken, s.FirstToken, s.Span)
	if s.PerToken > 0 {
		observe(l.perToken, s.PerToken, s.Span)
	}
}

// stalled records a stall.
func (l *latencies) stalled(stall time.Duration, span trace.SpanContext) {
	observe(l.stall, stall, span)
}

// observe records a time, with the trace that it belongs to if that is sampled.
func observe(h prometheus.Histogram, took time.Duration, span trace.SpanContext) {
	if e, ok := h.(prometheus.ExemplarObserver); ok && span.IsSampled() {
		e.ObserveWithExemplar(took.Seconds(), prometheus.Labels{"trace_id": span.TraceID().String()})
		return
	}
	h.Observe(took.Seconds())
}
