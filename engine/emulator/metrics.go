package emulator

import (
	"maps"
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
	promptComputed                   prometheus.Histogram
	ends                             *prometheus.CounterVec
	lag                              prometheus.Counter

	samples []sample
}

// sample is a counter or gauge that is read from the Stats.
type sample struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(batch.Stats) float64
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
	m := &metrics{
		engine: e, registry: registry,
		firstToken:      histogram("time_to_first_token_seconds", "Time from arrival to the first token.", firstTokenBuckets),
		interToken:      histogram("inter_token_latency_seconds", "Time between two tokens of a request.", interTokenBuckets),
		endToEnd:        histogram("e2e_request_latency_seconds", "Time from arrival to the last token.", endToEndBuckets),
		iterationTokens: histogram("iteration_tokens_total", "Tokens computed per iteration.", tokenBuckets),
		promptLength:    histogram("request_prompt_tokens", "Prompt tokens of finished requests.", lengthBuckets),
		promptComputed:  histogram("request_prefill_kv_computed_tokens", "Prompt tokens of finished requests without the cached ones.", lengthBuckets),
		outputLength:    histogram("request_generation_tokens", "Generated tokens of finished requests.", lengthBuckets),
	}
	blocks := e.cfg.layout().Blocks
	caching := "True" // as in Python
	if e.cfg.NoPrefixCache {
		caching = "False"
	}
	add := func(kind prometheus.ValueType, name, help string, read func(batch.Stats) float64, more ...string) {
		all := maps.Clone(labels)
		for i := 0; i < len(more); i += 2 {
			all[more[i]] = more[i+1]
		}
		m.samples = append(m.samples, sample{prometheus.NewDesc(name, help, nil, all), kind, read})
	}
	waiting := func(s batch.Stats) float64 { return float64(s.Waiting + s.Loading) }
	capacity := func(s batch.Stats) float64 { return float64(s.Waiting) }
	deferred := func(s batch.Stats) float64 { return float64(s.Loading) }
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	add(gauge, "vllm:num_requests_running", "Requests in the batch.", func(s batch.Stats) float64 { return float64(s.Running) })
	add(gauge, "vllm:num_requests_waiting", "Requests waiting to be scheduled.", waiting)
	add(gauge, "vllm:num_requests_waiting_by_reason", "Requests waiting to be scheduled, by reason.", capacity, "reason", "capacity")
	add(gauge, "vllm:num_requests_waiting_by_reason", "Requests waiting to be scheduled, by reason.", deferred, "reason", "deferred")
	add(gauge, "vllm:kv_cache_usage_perc", "Share of the KV blocks in use; 1 is all.", func(s batch.Stats) float64 { return float64(s.UsedBlocks) / float64(blocks) })
	add(counter, "vllm:num_preemptions_total", "Requests preempted because KV blocks ran out.", func(s batch.Stats) float64 { return float64(s.Preemptions) })
	add(counter, "vllm:prompt_tokens_total", "Prompt tokens of requests that have begun to generate.", func(s batch.Stats) float64 { return float64(s.PromptTokens) })
	const bySource = "Prompt tokens of requests that have begun to generate, by where their KV came from."
	add(counter, "vllm:prompt_tokens_by_source_total", bySource, func(s batch.Stats) float64 { return float64(s.PromptTokens - s.PromptLocal - s.PromptExternal) }, "source", "local_compute")
	add(counter, "vllm:prompt_tokens_by_source_total", bySource, func(s batch.Stats) float64 { return float64(s.PromptLocal) }, "source", "local_cache_hit")
	add(counter, "vllm:prompt_tokens_by_source_total", bySource, func(s batch.Stats) float64 { return float64(s.PromptExternal) }, "source", "external_kv_transfer")
	add(counter, "vllm:generation_tokens_total", "Tokens generated.", func(s batch.Stats) float64 { return float64(s.GenerationTokens) })
	add(counter, "vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", func(s batch.Stats) float64 { return float64(s.PrefixQueries) })
	add(counter, "vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", func(s batch.Stats) float64 { return float64(s.PrefixHits) })
	if e.transfer != nil {
		add(counter, "vllm:external_prefix_cache_queries_total", "Prompt tokens asked of other engines.", func(s batch.Stats) float64 { return float64(s.ExternalQueries) })
		add(counter, "vllm:external_prefix_cache_hits_total", "Prompt tokens that other engines promised, also if they did not come.", func(s batch.Stats) float64 { return float64(s.ExternalHits) })
	}
	add(gauge, "cascade_emulator_frozen_requests", "Requests that are frozen while they migrate.", func(s batch.Stats) float64 { return float64(s.Frozen) })
	add(gauge, "cascade_emulator_reserved_blocks", "KV blocks reserved for requests that migrate to this engine.", func(s batch.Stats) float64 { return float64(s.Reserved) })
	add(gauge, "vllm:cache_config_info", "The KV cache's configuration.", func(batch.Stats) float64 { return 1 }, "block_size", strconv.Itoa(e.cfg.BlockTokens),
		"num_gpu_blocks", strconv.Itoa(blocks), "kv_cache_size_tokens", strconv.Itoa(blocks*e.cfg.BlockTokens), "enable_prefix_caching", caching)
	started := float64(e.created.UnixMicro()) / 1e6
	m.samples = append(m.samples, sample{prometheus.NewDesc("process_start_time_seconds", "When the engine started, in seconds since 1970.", nil, nil), gauge, func(batch.Stats) float64 { return started }})
	m.ends = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "vllm:request_success_total", Help: "Requests finished, by reason.", ConstLabels: labels}, []string{"finished_reason"})
	m.lag = prometheus.NewCounter(prometheus.CounterOpts{Name: "cascade_emulator_lag_seconds_total", Help: "Time that this machine was too slow to emulate; a run with any is not to be trusted.", ConstLabels: labels})
	registry.MustRegister(m.ends, m.lag, m)
	return m
}

// ended records a finished request.
func (m *metrics) ended(took time.Duration, ev batch.Event) {
	m.endToEnd.Observe(took.Seconds())
	m.promptLength.Observe(float64(ev.Sequence.Length() - ev.Sequence.Output()))
	m.promptComputed.Observe(float64(ev.Sequence.Length() - ev.Sequence.Output() - ev.Cached))
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
	if e.hung != nil {
		queued = 0 // the core counts what waits
	}
	e.mu.Unlock()
	s.Waiting += queued
	for _, x := range m.samples {
		ch <- prometheus.MustNewConstMetric(x.desc, x.kind, x.read(s))
	}
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
