package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cascadeinfer/cascade/migrator/frontend"
)

// frontendMetrics are the metrics of a migrator's front end. Each is read from its Status at a
// scrape. Their names begin with cascade_migrator_, and they have the labels replica and model.
var frontendMetrics = [...]struct {
	name, help string
	kind       prometheus.ValueType
	of         func(frontend.Status) float64
}{
	{"engine_ready", "1 while the engine answers its health check.", prometheus.GaugeValue, func(s frontend.Status) float64 { return boolValue(s.EngineReady) }},
	{"draining", "1 once the migrator accepts no new requests.", prometheus.GaugeValue, func(s frontend.Status) float64 { return boolValue(s.Draining) }},
	{"running", "Requests that the engine generates for.", prometheus.GaugeValue, func(s frontend.Status) float64 { return float64(s.Load.Running) }},
	{"waiting", "Requests without a token yet.", prometheus.GaugeValue, func(s frontend.Status) float64 { return float64(s.Load.Waiting) }},
	{"held_tokens", "KV tokens of running requests.", prometheus.GaugeValue, func(s frontend.Status) float64 { return float64(s.Load.Held) }},
	{"promised_tokens", "Tokens of requests that are accepted and not yet running.", prometheus.GaugeValue, func(s frontend.Status) float64 { return float64(s.Load.Promised) }},
	{"iteration_seconds", "Recent mean time between a request's tokens.", prometheus.GaugeValue, func(s frontend.Status) float64 { return s.Load.Iteration }},
	{"requests_seen_total", "Requests that were counted.", prometheus.CounterValue, func(s frontend.Status) float64 { return float64(s.Flow.Seen) }},
	{"arrivals_per_second", "Arriving requests per second, exponentially weighted.", prometheus.GaugeValue, func(s frontend.Status) float64 { return sum(s.Flow.Arrivals) }},
	{"generated_tokens_per_second", "Generated tokens per second, exponentially weighted.", prometheus.GaugeValue, func(s frontend.Status) float64 { return sum(s.Flow.Tokens) }},
	{"prefill_tokens_per_second", "Uncached prompt tokens per second, exponentially weighted.", prometheus.GaugeValue, func(s frontend.Status) float64 { return sum(s.Flow.Prefill) }},
	{"bytes_per_token", "Prompt bytes per token, learnt from exact counts; 0 before the first.", prometheus.GaugeValue, func(s frontend.Status) float64 { return s.BytesPerToken }},
	{"estimate_error_ratio", "Mean relative error of the length estimates.", prometheus.GaugeValue, func(s frontend.Status) float64 { return s.EstimateError }},
}

// frontendCollector collects the metrics of one front end.
type frontendCollector struct {
	status func() frontend.Status
	descs  [len(frontendMetrics)]*prometheus.Desc
}

var _ prometheus.Collector = (*frontendCollector)(nil)

func newFrontendCollector(status func() frontend.Status, replica, model string) *frontendCollector {
	c := &frontendCollector{status: status}
	labels := prometheus.Labels{"replica": replica, "model": model}
	for i, m := range frontendMetrics {
		c.descs[i] = prometheus.NewDesc(prometheus.BuildFQName("cascade", "migrator", m.name), m.help, nil, labels)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *frontendCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *frontendCollector) Collect(out chan<- prometheus.Metric) {
	s := c.status()
	for i, m := range frontendMetrics {
		out <- prometheus.MustNewConstMetric(c.descs[i], m.kind, m.of(s))
	}
}

// boolValue returns 1 for true, 0 for false.
func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func sum(xs []float64) (total float64) {
	for _, x := range xs {
		total += x
	}
	return total
}
