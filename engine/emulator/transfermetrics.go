package emulator

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Buckets of the transfers' histograms, vLLM's.
var (
	transferSecondsBuckets = []float64{.005, .01, .025, .05, .075, .1, .2, .3, .5, .75, 1, 5}
	transferBytesBuckets   = prometheus.ExponentialBuckets(2<<10, 4, 12)
	descriptorBuckets      = []float64{10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000}
)

// transferMetrics are the metrics of a KV connector. An engine without one has them but does not show
// them.
type transferMetrics struct {
	seconds, post, bytes, descriptors prometheus.Histogram
	failed, lost, expired, lateReads  prometheus.Counter
}

func newTransferMetrics(labels prometheus.Labels) *transferMetrics {
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "vllm:nixl_" + name, Help: help, ConstLabels: labels, Buckets: buckets})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "vllm:nixl_" + name, Help: help, ConstLabels: labels})
	}
	return &transferMetrics{
		seconds:     histogram("xfer_time_seconds", "Time of a KV transfer.", transferSecondsBuckets),
		post:        histogram("post_time_seconds", "Time to post a KV transfer.", transferSecondsBuckets),
		bytes:       histogram("bytes_transferred", "Bytes of a KV transfer.", transferBytesBuckets),
		descriptors: histogram("num_descriptors", "Descriptors of a KV transfer.", descriptorBuckets),
		failed:      counter("num_failed_transfers_total", "KV transfers that failed."),
		lost:        counter("num_failed_notifications_total", "Notifications of KV transfers that failed."),
		expired:     counter("num_kv_expired_reqs_total", "Requests whose KV was freed before it was read."),
		lateReads:   counter("num_notifications_after_expiry_total", "Notifications of reads after the KV was freed."),
	}
}

// register makes the metrics visible.
func (m *transferMetrics) register(r *prometheus.Registry) {
	r.MustRegister(m.seconds, m.post, m.bytes, m.descriptors, m.failed, m.lost, m.expired, m.lateReads)
}

// succeeded records a transfer.
func (m *transferMetrics) succeeded(took time.Duration, bytes, descriptors int) {
	m.seconds.Observe(took.Seconds())
	m.post.Observe(0)
	m.bytes.Observe(float64(bytes))
	m.descriptors.Observe(float64(descriptors))
}
