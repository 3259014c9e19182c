// Package sglang is the dialect of SGLang, 0.5.23.
package sglang

import (
	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
)

// Dialect is SGLang's.
type Dialect struct{}

var _ dialect.Dialect = Dialect{}

// fields are the members that SGLang adds to the API.
var fields = &openai.Fields{
	IDs: "return_token_ids",
	Withheld: []string{"rid", "bootstrap_host", "bootstrap_port", "bootstrap_room", "session_params", "data_parallel_rank",
		"routed_dp_rank", "disagg_prefill_dp_rank"},
	Features: map[string]policies.Features{
		"regex": policies.Structured, "ebnf": policies.Structured, "json_schema": policies.Structured, "structural_tag": policies.Structured,
		"input_ids": policies.Unreadable, "input_embeds": policies.Multimodal, "return_hidden_states": policies.Unreadable,
	},
	Tied:       []string{"custom_logit_processor", "custom_params", "lora_path"},
	PromptOnly: []string{"continue_final_message", "chat_template_kwargs"},
}

var capabilities = dialect.Capabilities{
	Name: "sglang", Fields: fields, VersionPath: "/server_info", LoadPath: "/metrics",
	Counters: []string{"sglang:generation_tokens_total", "sglang:prompt_tokens_total", "sglang:num_used_tokens", "sglang:num_retracted_reqs"},
	Text:     "text",
}

// Capabilities implements dialect.Dialect.
func (Dialect) Capabilities() dialect.Capabilities { return capabilities }

// Parse implements dialect.Dialect. Streamed chats get no token ids.
func (Dialect) Parse(e openai.Endpoint, body []byte) (openai.Request, error) {
	r, err := fields.Parse(e, body)
	if e == openai.Chat && !r.WantsIDs {
		r.WithoutIDs()
	}
	return r, err
}

// Continue implements dialect.Dialect.
func (Dialect) Continue(q *openai.Resume, c dialect.Continuation) []byte {
	dst := make([]byte, 0, 7*len(c.IDs)+len(q.Rest)+256)
	if c.Warm {
		dst = append(dst, `{"max_tokens":1`...)
	} else {
		dst = q.AppendLimits(append(append(dst, `{"stream":true,"return_token_ids":true,"stream_options":`...), q.Options...), c.Output)
	}
	return append(append(openai.AppendIDList(append(dst, `,"prompt":`...), c.IDs), q.Rest...), '}')
}

// Tokenize implements dialect.Dialect, for texts: /tokenize knows no chat template.
func (Dialect) Tokenize(r *openai.Request) dialect.Call {
	if r.Endpoint == openai.Chat || !r.OneText() {
		return dialect.Call{}
	}
	body := append(append([]byte(`{"prompt":`), r.Prompt()...), '}')
	return dialect.Call{Path: "/tokenize", Body: body, Tokens: "tokens"}
}

// The samples that are read.
const (
	running = "sglang:num_running_reqs"
	waiting = "sglang:num_queue_reqs"
	usage   = "sglang:token_usage"
	size    = "sglang:max_total_num_tokens"
)

var names = map[string]bool{running: true, waiting: true, usage: true, size: true}

// Load implements dialect.Dialect, for metrics in Prometheus's text format.
func (Dialect) Load(text []byte) (m engineinfo.Metrics, err error) {
	samples := dialect.ReadSamples(text, func(name string) bool { return names[name] })
	m.StartedAt = samples.TakeStart()
	if len(samples) == 0 {
		return engineinfo.Metrics{}, dialect.ErrNoMetrics
	}
	m.KVTokens = policies.Tokens(samples.Sum(size, dialect.MaxTokens))
	if share, known := samples.Mean(usage); known && m.KVTokens > 0 {
		m.Load.Capacity, m.Load.KVUsed = m.KVTokens, dialect.KVUsed(share, m.KVTokens)
	}
	m.StatesRequests = len(samples[running]) > 0
	m.Load.Running = int(samples.Sum(running, dialect.MaxRequests))
	m.Load.Waiting = int(samples.Sum(waiting, dialect.MaxRequests))
	m.Load.Queued = m.Load.Waiting
	return m, nil
}
