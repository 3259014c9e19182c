package proxy

import (
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
)

// noCluster is the cluster label of requests that reached no stage.
const noCluster = "none"

// metrics holds the proxy's metrics.
type metrics struct {
	requests  *prometheus.CounterVec
	retries   *prometheus.CounterVec
	failures  *prometheus.CounterVec
	ejections *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	firstByte *prometheus.HistogramVec
	active    *prometheus.GaugeVec
	unlogged  prometheus.Counter
	none      stageMetrics // of requests that reached no stage
}

func newMetrics(r prometheus.Registerer, connected func() bool) (*metrics, error) {
	// Generating a response takes from milliseconds to many minutes.
	buckets := prometheus.ExponentialBuckets(0.001, 2, 21)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "cascade", Subsystem: "proxy", Name: name,
			Help: help}, labels)
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "cascade", Subsystem: "proxy",
			Name: name, Help: help, Buckets: buckets}, []string{"cluster"})
	}
	m := &metrics{
		requests: counter("requests_total", "Requests by cluster and status; 499 means that the client left before the response.", "cluster", "code"),
		retries:  counter("upstream_retries_total", "Attempts after the first, by cluster.", "cluster"),
		failures: counter("upstream_failures_total", "Attempts without a response, by cluster and kind.",
			"cluster", "kind"),
		ejections: counter("ejections_total", "Replicas passed over for a while because they gave no response, by cluster.", "cluster"),
		duration:  histogram("request_duration_seconds", "Time from a request's headers to the end of its response."),
		firstByte: histogram("first_byte_seconds", "Time from a request's headers to those of its response."),
		active: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "cascade", Subsystem: "proxy",
			Name: "active_requests",
			Help: "Requests in flight by cluster."}, []string{"cluster"}),
	}
	m.unlogged = prometheus.NewCounter(prometheus.CounterOpts{Namespace: "cascade", Subsystem: "proxy",
		Name: "access_log_dropped_total",
		Help: "Lines of the access log that were dropped because its disk was too slow or failed."})
	m.none = m.stage(noCluster)
	if r == nil {
		return m, nil
	}
	up := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "cascade", Subsystem: "proxy",
		Name: "control_plane_connected",
		Help: "1 while the stream to the control plane is open."}, func() float64 {
		if connected() {
			return 1
		}
		return 0
	})
	var errs []error
	for _, c := range []prometheus.Collector{m.requests, m.retries, m.failures, m.ejections, m.duration,
		m.firstByte, m.active, m.unlogged, up} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

// stageMetrics are the metrics of one stage.
type stageMetrics struct {
	requests, failures *prometheus.CounterVec
	retries, ejections prometheus.Counter
	duration           prometheus.Observer
	firstByte          prometheus.Observer
	active             prometheus.Gauge
}

func (m *metrics) stage(name string) stageMetrics {
	of := prometheus.Labels{"cluster": name}
	return stageMetrics{
		requests: m.requests.MustCurryWith(of), failures: m.failures.MustCurryWith(of),
		retries: m.retries.With(of), ejections: m.ejections.With(of), duration: m.duration.With(of),
		firstByte: m.firstByte.With(of), active: m.active.With(of),
	}
}

// answered counts a request by its status.
func (s *stageMetrics) answered(code int) {
	if code < 100 || code > 599 {
		code = 0
	}
	s.requests.WithLabelValues(strconv.Itoa(code)).Inc()
}

// failed counts an attempt without a response.
func (s *stageMetrics) failed(kind string) { s.failures.WithLabelValues(kind).Inc() }

// observeTime records a latency, with the trace of the request if it is sampled: OpenMetrics calls
// that an exemplar.
func observeTime(o prometheus.Observer, took time.Duration, span trace.Span) {
	if span != nil && span.SpanContext().IsSampled() {
		if e, ok := o.(prometheus.ExemplarObserver); ok {
			e.ObserveWithExemplar(took.Seconds(), prometheus.Labels{"trace_id": span.SpanContext().TraceID().String()})
			return
		}
	}
	o.Observe(took.Seconds())
}
