package vllm

import (
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/policies"
)

// The samples that are read.
const (
	running     = "vllm:num_requests_running"
	waiting     = "vllm:num_requests_waiting"
	byReason    = "vllm:num_requests_waiting_by_reason"
	usage       = "vllm:kv_cache_usage_perc"
	preemptions = "vllm:num_preemptions_total"
	cacheConfig = "vllm:cache_config_info"
	accepted    = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
	// nixl begins the names of the metrics of the NIXL connector, which an engine has from its start if it
	// has the connector.
	nixl = "vllm:nixl_"
)

var names = map[string]bool{running: true, waiting: true, byReason: true, usage: true, preemptions: true, cacheConfig: true, accepted: true}

const (
	maxDraft = 1 << 10
	maxLabel = 32 // bytes of one that describes a KV block
)

// Load implements dialect.Dialect, for metrics in Prometheus's text format.
func (Dialect) Load(text []byte) (engineinfo.Metrics, error) {
	var m engineinfo.Metrics
	samples := dialect.ReadSamples(text, func(name string) bool {
		if strings.HasPrefix(name, nixl) {
			m.Connector, m.ConnectorName = engineinfo.Present, "nixl"
		}
		return names[name]
	})
	m.StartedAt = samples.TakeStart()
	if len(samples) == 0 && m.Connector == engineinfo.Unknown {
		return engineinfo.Metrics{}, dialect.ErrNoMetrics
	}
	readCacheConfig(samples[cacheConfig], &m)
	samples.TakeLoad(&m, running, waiting, usage)
	if len(samples[byReason]) > 0 {
		m.Load.Queued = min(int(samples.SumWhere(byReason, "reason", "capacity", dialect.MaxRequests)), m.Load.Waiting)
	}
	m.Load.Preemptions = uint64(samples.Sum(preemptions, 1<<53))
	for _, s := range samples[accepted] { // one for each position that it speculates on
		if at, err := strconv.Atoi(dialect.Label(s, "position")); err == nil && at >= 0 && at < maxDraft {
			m.DraftTokens = max(m.DraftTokens, at+1)
		}
	}
	return m, nil
}

// readCacheConfig takes from the info metrics about the KV caches the length of a block, the sums of blocks
// or tokens over the engines behind one address, and what engines that read each other's blocks must have in
// common.
func readCacheConfig(samples []*dto.Metric, m *engineinfo.Metrics) {
	var blocks, tokens policies.Tokens
	for _, s := range samples {
		m.BlockTokens = max(m.BlockTokens, dialect.LabelTokens(s, "block_size"))
		blocks += dialect.LabelTokens(s, "num_gpu_blocks")
		tokens += dialect.LabelTokens(s, "kv_cache_size_tokens")
	}
	if m.BlockTokens > dialect.MaxTokens/max(blocks, 1) {
		m.BlockTokens, blocks = 0, 0
	}
	if m.KVTokens = min(tokens, dialect.MaxTokens); m.KVTokens == 0 {
		m.KVTokens = blocks * m.BlockTokens
	}
	if len(samples) == 0 {
		return
	}
	for _, name := range [...]string{"block_size", "cache_dtype"} {
		if is := dialect.Label(samples[0], name); is != "" && len(is) <= maxLabel {
			m.Layout = strings.TrimPrefix(m.Layout+" "+name+"="+is, " ")
		}
	}
}
