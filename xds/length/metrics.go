package length

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// outcome is how a request was answered; its text is the metric's label.
type outcome string

const (
	fromHeaders  outcome = "headers"       // estimated from content-length
	fromBody     outcome = "body"          // estimated from the body
	fromBodySize outcome = "body_size"     // estimated from the body's size: its content is not countable
	noBody       outcome = "no_body"       // nothing to estimate
	unknownModel outcome = "unknown_model" // estimated, but of no known model
	tooLarge     outcome = "too_large"     // refused with 413
	late         outcome = "late"          // the body did not arrive in time
	skipped      outcome = "skipped"       // not a request: passed through
	refused      outcome = "protocol"      // the filter's configuration is wrong
)

// metrics holds the service's metrics.
type metrics struct {
	answers *prometheus.CounterVec
	streams prometheus.Gauge
	bodies  prometheus.Histogram
}

func newMetrics() metrics {
	m := metrics{
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cascade_length_answers_total",
			Help: "Requests that the length estimator answered, by outcome.",
		}, []string{"outcome"}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cascade_length_streams",
			Help: "Requests that the length estimator is processing, including those whose body is awaited.",
		}),
		bodies: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "cascade_length_body_bytes",
			Help:    "Sizes of the bodies that the length estimator had to read.",
			Buckets: prometheus.ExponentialBuckets(1<<10, 4, 8), // 1 KiB … 16 MiB
		}),
	}
	for _, o := range []outcome{fromHeaders, fromBody, fromBodySize, noBody, unknownModel, tooLarge, late, skipped, refused} {
		m.answers.WithLabelValues(string(o))
	}
	return m
}

// register registers the metrics; nil registers nothing.
func (m metrics) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	return errors.Join(r.Register(m.answers), r.Register(m.streams), r.Register(m.bodies))
}

func (m metrics) count(o outcome) { m.answers.WithLabelValues(string(o)).Inc() }
