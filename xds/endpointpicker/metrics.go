package endpointpicker

import (
	"errors"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cascadeinfer/cascade/internal/httpserver"
)

// outcome is how a request was answered; its text is the metric's label.
type outcome string

const (
	picked       outcome = "picked"
	noEndpoint   outcome = "no_endpoint"   // 503: none is ready
	notInSubset  outcome = "not_in_subset" // 503: none of the gateway's subset is ready
	unknownModel outcome = "unknown_model" // 404
	tooLarge     outcome = "too_large"     // 413
	late         outcome = "late"          // 408: the body did not arrive in time
	shed         outcome = "shed"          // 429: no memory for the body
	unsupported  outcome = "unsupported"   // 500: the filter is not configured for the protocol
)

// metrics holds the picker's metrics.
type metrics struct {
	requests *prometheus.CounterVec
	stages   *prometheus.CounterVec
	served   *prometheus.CounterVec
	streams  prometheus.Gauge
	held     prometheus.GaugeFunc
}

func newMetrics(budget *httpserver.Budget) metrics {
	m := metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cascade_endpoint_picker_requests_total", Help: "Requests that the endpoint picker answered, by outcome.",
		}, []string{"outcome"}),
		stages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cascade_endpoint_picker_stage_requests_total", Help: "Requests for which endpoints were picked, by model and stage.",
		}, []string{"model", "stage"}),
		served: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cascade_endpoint_picker_served_total", Help: "Responses by the place of the endpoint that served in the list of those picked, as far as the gateway says: first, fallback or other.",
		}, []string{"place"}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cascade_endpoint_picker_streams", Help: "Requests in progress, including those whose response is passing.",
		}),
		held: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "cascade_endpoint_picker_held_bytes", Help: "Memory of the request bodies that are held.",
		}, func() float64 { return float64(budget.Held()) }),
	}
	for _, o := range []outcome{picked, noEndpoint, notInSubset, unknownModel, tooLarge, late, shed, unsupported} {
		m.requests.WithLabelValues(string(o))
	}
	for _, place := range []string{"first", "fallback", "other"} {
		m.served.WithLabelValues(place)
	}
	return m
}

// register registers the metrics; nil registers nothing.
func (m metrics) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.requests, m.stages, m.served, m.streams, m.held} {
		errs = append(errs, r.Register(c))
	}
	return errors.Join(errs...)
}

func (m metrics) count(o outcome) { m.requests.WithLabelValues(string(o)).Inc() }

// countServed counts a response by the place of its endpoint among those picked.
func (m metrics) countServed(addresses []string, served string) {
	place := "other"
	switch slices.Index(addresses, served) {
	case 0:
		place = "first"
	case -1:
	default:
		place = "fallback"
	}
	m.served.WithLabelValues(place).Inc()
}
