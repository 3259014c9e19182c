package engineinfo

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/cascadeinfer/cascade/policies"
)

// Metrics is what one answer of /metrics says of its engine.
type Metrics struct {
	Load                  policies.EngineLoad // Queued is that of this report alone
	StatesRequests        bool                // Load.Running and Load.Waiting are stated
	BlockTokens, KVTokens policies.Tokens
	Connector             Presence // Present (of NIXL) or Unknown
	Layout                string   // as Info.Layout
	DraftTokens           int
	StartedAt             float64 // process_start_time_seconds; 0: not stated
}

// ErrNoMetrics is returned for metrics of which none is known here.
var ErrNoMetrics = errors.New("no metrics of an engine: known are vLLM's and SGLang's")

// Bounds of what metrics may say; beyond them a value is not taken.
const (
	maxRequests = 1 << 24
	maxTokens   = 1 << 40
	maxDraft    = 1 << 10
	maxLabel    = 32 // bytes of one that describes a KV block
)

// names are the samples that are read, by their name in the text. Histograms and the like
// are never parsed: an engine has hundreds of them.
var names = map[string]bool{
	"vllm:num_requests_running": true, "vllm:num_requests_waiting": true, "vllm:num_requests_waiting_by_reason": true, "vllm:kv_cache_usage_perc": true,
	"vllm:num_preemptions_total": true, "vllm:cache_config_info": true, "vllm:spec_decode_num_accepted_tokens_per_pos_total": true,
	"sglang:num_running_reqs": true, "sglang:num_queue_reqs": true, "sglang:token_usage": true, "sglang:max_total_num_tokens": true,
	"process_start_time_seconds": true,
}

// nixlPrefix begins the names of the metrics of vLLM's NIXL connector, which an engine has
// from its start if it has the connector.
const nixlPrefix = "vllm:nixl_"

// DecodeMetrics decodes metrics in Prometheus's text format.
func DecodeMetrics(text []byte) (Metrics, error) {
	var m Metrics
	samples := samplesByName(text, &m)
	perBlock, blocks, tokens := cacheConfig(samples["vllm:cache_config_info"])
	m.BlockTokens, m.KVTokens, m.Layout = perBlock, tokens, layout(samples["vllm:cache_config_info"])
	if m.KVTokens == 0 {
		m.KVTokens = blocks * perBlock
	}
	usage, known := mean(samples["vllm:kv_cache_usage_perc"])
	if m.KVTokens == 0 {
		m.KVTokens = policies.Tokens(sum(samples["sglang:max_total_num_tokens"], maxTokens))
	}
	if !known {
		usage, known = mean(samples["sglang:token_usage"])
	}
	if known && m.KVTokens > 0 {
		m.Load.Capacity = m.KVTokens
		m.Load.KVUsed = policies.Tokens(math.Round(min(usage, 1) * float64(m.KVTokens)))
	}
	m.StatesRequests = len(samples["vllm:num_requests_running"])+len(samples["sglang:num_running_reqs"]) > 0
	m.Load.Running = int(sum(samples["vllm:num_requests_running"], maxRequests) + sum(samples["sglang:num_running_reqs"], maxRequests))
	m.Load.Waiting = int(sum(samples["vllm:num_requests_waiting"], maxRequests) + sum(samples["sglang:num_queue_reqs"], maxRequests))
	m.Load.Queued = m.Load.Waiting
	if byReason := samples["vllm:num_requests_waiting_by_reason"]; len(byReason) > 0 {
		byReason = slices.DeleteFunc(byReason, func(s *dto.Metric) bool { return !hasLabel(s, "reason", "capacity") })
		m.Load.Queued = min(int(sum(byReason, maxRequests)), m.Load.Waiting)
	}
	m.Load.Preemptions = uint64(sum(samples["vllm:num_preemptions_total"], 1<<53))
	m.DraftTokens = draftTokens(samples["vllm:spec_decode_num_accepted_tokens_per_pos_total"])
	m.StartedAt = sum(samples["process_start_time_seconds"], math.MaxFloat64)
	delete(samples, "process_start_time_seconds") // any process has it
	if len(samples) == 0 && m.Connector == Unknown {
		return Metrics{}, ErrNoMetrics
	}
	return m, nil
}

// samplesByName parses the lines of the known names, each on its own, so that a bad one costs
// no other. It also notes which families there are.
func samplesByName(text []byte, m *Metrics) map[string][]*dto.Metric {
	out := make(map[string][]*dto.Metric)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	for line := range bytes.Lines(text) {
		end := bytes.IndexAny(line, "{ \t")
		if end < 0 {
			continue
		}
		name := string(line[:end])
		if strings.HasPrefix(name, nixlPrefix) {
			m.Connector = Present
		}
		if !names[name] {
			continue
		}
		// Without a TYPE line every sample is a family of its own.
		families, err := parser.TextToMetricFamilies(bytes.NewReader(append(bytes.TrimSpace(line), '\n')))
		if err == nil && families[name] != nil {
			out[name] = append(out[name], families[name].GetMetric()...)
		}
	}
	return out
}

// value returns a sample's value, and whether it is a number from 0 to most.
func value(s *dto.Metric, most float64) (float64, bool) {
	v := s.GetUntyped().GetValue()
	return v, v >= 0 && v <= most
}

// sum adds up the samples of the engines behind one address (data parallelism).
func sum(samples []*dto.Metric, most float64) (total float64) {
	for _, s := range samples {
		if v, ok := value(s, most); ok {
			total += v
		}
	}
	return min(total, most)
}

// mean returns the mean of the samples of the engines behind one address, which are alike.
func mean(samples []*dto.Metric) (float64, bool) {
	total, n := 0.0, 0
	for _, s := range samples {
		if v, ok := value(s, math.MaxInt32); ok {
			total, n = total+v, n+1
		}
	}
	return total / float64(max(n, 1)), n > 0
}

// cacheConfig returns what vLLM's info metrics about its KV caches say: the length of a block,
// and the sums of blocks and tokens over the engines behind one address.
func cacheConfig(samples []*dto.Metric) (perBlock, blocks, tokens policies.Tokens) {
	for _, s := range samples {
		perBlock = max(perBlock, label(s, "block_size"))
		blocks += label(s, "num_gpu_blocks")
		tokens += label(s, "kv_cache_size_tokens")
	}
	if perBlock > maxTokens/max(blocks, 1) {
		return 0, 0, min(tokens, maxTokens)
	}
	return perBlock, blocks, min(tokens, maxTokens)
}

// layout returns what vLLM's info metrics say of a KV block, for engines that read each other's.
func layout(samples []*dto.Metric) string {
	if len(samples) == 0 {
		return ""
	}
	var out []string
	for _, name := range [...]string{"block_size", "cache_dtype"} {
		for _, l := range samples[0].GetLabel() {
			if l.GetName() == name && len(l.GetValue()) <= maxLabel {
				out = append(out, name+"="+l.GetValue())
			}
		}
	}
	return strings.Join(out, " ")
}

// label returns the number in a label, 0 if it has none ("None" in vLLM's).
func label(s *dto.Metric, name string) policies.Tokens {
	for _, l := range s.GetLabel() {
		if l.GetName() == name {
			n, err := strconv.ParseInt(l.GetValue(), 10, 64)
			if err != nil || n < 0 || n > maxRequests*64 {
				return 0
			}
			return policies.Tokens(n)
		}
	}
	return 0
}

// hasLabel reports whether a sample has a label with a value.
func hasLabel(s *dto.Metric, name, value string) bool {
	return slices.ContainsFunc(s.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == name && l.GetValue() == value })
}

// draftTokens counts the positions that vLLM speculates on.
func draftTokens(samples []*dto.Metric) (n int) {
	for _, s := range samples {
		for _, l := range s.GetLabel() {
			if l.GetName() != "position" {
				continue
			}
			if at, err := strconv.Atoi(l.GetValue()); err == nil && at >= 0 && at < maxDraft {
				n = max(n, at+1)
			}
		}
	}
	return n
}
