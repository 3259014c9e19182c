package emulator

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cascadeinfer/cascade/engine/internal/batch"
)

// Buckets of the latency histograms in seconds: vLLM's from their start (1 ms, 10 ms, 300 ms),
// and finer ones below, because replicas may run faster than real time.
var (
	firstTokenBuckets = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160}
	interTokenBuckets = []float64{.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 10}
	endToEndBuckets   = []float64{.03, .1, .3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480}
	tokenBuckets      = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
	lengthBuckets     = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000}
)

// metrics are the replica's metrics under vLLM's names: histograms that the loop observes, and
// counters and gauges from the scheduler's Stats.
type metrics struct {
	engine   *Engine
	registry *prometheus.Registry

	firstToken, interToken, endToEnd prometheus.Histogram
	iterationTokens                  prometheus.Histogram
	promptLength, outputLength       prometheus.Histogram
	ends                             *prometheus.CounterVec
	lag                              prometheus.Counter

	running, waiting, usage      *prometheus.Desc
	preemptions, prompt, output  *prometheus.Desc
	prefixQueries, prefixHits    *prometheus.Desc
	cacheConfig, waitingByReason *prometheus.Desc
	frozen, reserved             *prometheus.Desc
}

var _ prometheus.Collector = (*metrics)(nil)

func newMetrics(e *Engine) *metrics {
	labels := prometheus.Labels{"model_name": e.cfg.Model, "engine": "0"}
	registry := prometheus.NewRegistry()
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "vllm:" + name, Help: help, ConstLabels: labels, Buckets: buckets})
		registry.MustRegister(h)
		return h
	}
	desc := func(name, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc("vllm:"+name, help, variable, labels)
	}
	m := &metrics{
		engine: e, registry: registry,
		firstToken:      histogram("time_to_first_token_seconds", "Time from arrival to the first token.", firstTokenBuckets),
		interToken:      histogram("inter_token_latency_seconds", "Time between two tokens of a request.", interTokenBuckets),
		endToEnd:        histogram("e2e_request_latency_seconds", "Time from arrival to the last token.", endToEndBuckets),
		iterationTokens: histogram("iteration_tokens_total", "Tokens computed per iteration.", tokenBuckets),
		promptLength:    histogram("request_prompt_tokens", "Prompt tokens of finished requests.", lengthBuckets),
		outputLength:    histogram("request_generation_tokens", "Generated tokens of finished requests.", lengthBuckets),

		running:         desc("num_requests_running", "Requests in the batch."),
		waiting:         desc("num_requests_waiting", "Requests waiting to be scheduled."),
		waitingByReason: desc("num_requests_waiting_by_reason", "Requests waiting to be scheduled, by reason.", "reason"),
		usage:           desc("kv_cache_usage_perc", "Share of the KV blocks in use; 1 is all."),
		preemptions:     desc("num_preemptions_total", "Requests preempted because KV blocks ran out."),
		prompt:          desc("prompt_tokens_total", "Prompt tokens of requests that have begun to generate."),
		output:          desc("generation_tokens_total", "Tokens generated."),
		prefixQueries:   desc("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache."),
		prefixHits:      desc("prefix_cache_hits_total", "Prompt tokens found in the prefix cache."),
		cacheConfig:     desc("cache_config_info", "The KV cache's configuration.", "block_size", "num_gpu_blocks", "kv_cache_size_tokens", "enable_prefix_caching"),
	}
	own := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("cascade_emulator_"+name, help, nil, labels)
	}
	m.frozen = own("frozen_requests", "Requests that are frozen while they migrate.")
	m.reserved = own("reserved_blocks", "KV blocks reserved for requests that migrate to this engine.")
	m.ends = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "vllm:request_success_total", Help: "Requests finished, by reason.", ConstLabels: labels}, []string{"finished_reason"})
	m.lag = prometheus.NewCounter(prometheus.CounterOpts{Name: "cascade_emulator_lag_seconds_total", Help: "Time that this machine was too slow to emulate; a run with any is not to be trusted.", ConstLabels: labels})
	registry.MustRegister(m.ends, m.lag, m)
	return m
}

// ended records a finished request.
func (m *metrics) ended(took time.Duration, ev batch.Event) {
	m.endToEnd.Observe(took.Seconds())
	m.promptLength.Observe(float64(ev.Sequence.Length() - ev.Sequence.Output()))
	m.outputLength.Observe(float64(ev.Sequence.Output()))
	reason := "stop"
	if ev.Finish == batch.AtLength {
		reason = "length"
	}
	m.ends.WithLabelValues(reason).Inc()
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	e := m.engine
	e.mu.Lock()
	s, queued := e.stats, len(e.inbox)
	e.mu.Unlock()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	blocks := e.cfg.layout().Blocks
	caching := "True" // as in Python
	if e.cfg.NoPrefixCache {
		caching = "False"
	}
	send(m.running, prometheus.GaugeValue, float64(s.Running))
	send(m.waiting, prometheus.GaugeValue, float64(s.Waiting+queued))
	send(m.waitingByReason, prometheus.GaugeValue, float64(s.Waiting+queued), "capacity")
	send(m.waitingByReason, prometheus.GaugeValue, 0, "deferred")
	send(m.usage, prometheus.GaugeValue, float64(s.UsedBlocks)/float64(blocks))
	send(m.preemptions, prometheus.CounterValue, float64(s.Preemptions))
	send(m.prompt, prometheus.CounterValue, float64(s.PromptTokens))
	send(m.output, prometheus.CounterValue, float64(s.GenerationTokens))
	send(m.prefixQueries, prometheus.CounterValue, float64(s.PrefixQueries))
	send(m.prefixHits, prometheus.CounterValue, float64(s.PrefixHits))
	send(m.frozen, prometheus.GaugeValue, float64(s.Frozen))
	send(m.reserved, prometheus.GaugeValue, float64(s.Reserved))
	send(m.cacheConfig, prometheus.GaugeValue, 1, strconv.Itoa(e.cfg.BlockTokens), strconv.Itoa(blocks), strconv.Itoa(blocks*e.cfg.BlockTokens), caching)
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
