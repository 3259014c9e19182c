package discovery

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are what a discovery exposes.
type Metrics struct {
	Pods   map[State]int // how many Pods are in each state
	Faults int           // what cannot be read or written
	Writes uint64        // how often the fleet file was written
}

var (
	podsDesc   = prometheus.NewDesc("cascade_discovery_pods", "Pods that the InferencePool or Service selects, by what they are in the fleet.", []string{"state"}, nil)
	faultsDesc = prometheus.NewDesc("cascade_discovery_faults", "Number of things that discovery cannot read or write: /status says why.", nil, nil)
	writesDesc = prometheus.NewDesc("cascade_discovery_writes_total", "Times that the fleet file was written.", nil, nil)
)

// collector collects the Metrics that a function returns.
type collector func() Metrics

// NewCollector returns a Collector of the Metrics that a function returns, which may be called from any
// goroutine.
func NewCollector(now func() Metrics) prometheus.Collector { return collector(now) }

// Describe implements prometheus.Collector.
func (collector) Describe(out chan<- *prometheus.Desc) {
	out <- podsDesc
	out <- faultsDesc
	out <- writesDesc
}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) {
	m := c()
	for _, state := range [...]State{LeftOut, Serving, Draining, Kept} {
		out <- prometheus.MustNewConstMetric(podsDesc, prometheus.GaugeValue, float64(m.Pods[state]), strings.ReplaceAll(state.String(), " ", "_"))
	}
	out <- prometheus.MustNewConstMetric(faultsDesc, prometheus.GaugeValue, float64(m.Faults))
	out <- prometheus.MustNewConstMetric(writesDesc, prometheus.CounterValue, float64(m.Writes))
}
