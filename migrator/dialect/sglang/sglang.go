// Package sglang is the dialect of SGLang, 0.5.23.
package sglang

import (
	"bytes"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
)

// Dialect is SGLang's. The zero value is for an engine of which it is not known how it was started: its chats stay.
type Dialect struct {
	plainText     bool // the text of a chat is that of /generate
	plainDefaults bool // chats sample as the API says by default, not as the model says
}

var (
	_ dialect.Dialect      = Dialect{}
	_ dialect.Configurable = Dialect{}
)

// Configured implements dialect.Configurable. A chat template that is not in Jinja has stop strings of its own.
func (Dialect) Configured(info []byte) dialect.Dialect {
	if openai.CheckObject(info) != nil {
		return Dialect{}
	}
	settings := gjson.ParseBytes(info)
	template := settings.Get("chat_template")
	return Dialect{
		plainText: settings.Get("reasoning_parser").Type != gjson.String && !settings.Get("incremental_streaming_output").Bool() &&
			!settings.Get("stream_output").Bool() && (template.Type != gjson.String || strings.HasSuffix(template.Str, ".jinja")),
		plainDefaults: settings.Get("sampling_defaults").Str == "openai",
	}
}

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
	PromptOnly: []string{"continue_final_message", "chat_template_kwargs", "reasoning_effort"},
	// A stop token is looked up if any request at the engine has min_tokens.
	IDLists: map[string]bool{"prompt": false, "input": false, "items": false,
		"query": true, "input_ids": true, "label_token_ids": true, "stop_token_ids": true},
}

var capabilities = dialect.Capabilities{
	Name: "sglang", Fields: fields, VersionPath: "/server_info", LoadPath: "/metrics",
	HealthPath: "/ping", // /health waits for the next token, for a second at least
	// The others change at the end of a request or after 40 steps.
	Counters: []string{"sglang:realtime_tokens_total", "sglang:generation_tokens_total", "sglang:prompt_tokens_total", "sglang:num_used_tokens", "sglang:num_retracted_reqs"},
	Text:     "text", ChatsByIDs: true,
	LastID: regexp.MustCompile(`keys in \[0, (\d{1,9})\]`), // a prompt with a greater id kills the engine
}

// Capabilities implements dialect.Dialect.
func (Dialect) Capabilities() dialect.Capabilities { return capabilities }

// Open implements dialect.Dialect: chats by ids go to /generate.
func (Dialect) Open(e openai.Endpoint, body []byte) (string, func(io.Reader) io.Reader) {
	if e == openai.Chat && bytes.HasPrefix(body, []byte(generate)) {
		return "/generate", func(src io.Reader) io.Reader { return newChatEvents(src, body) }
	}
	return e.Path(), nil
}

// Continue implements dialect.Dialect.
func (d Dialect) Continue(q *openai.Resume, c dialect.Continuation) []byte {
	if q.Endpoint == openai.Chat {
		return d.continueChat(q, c)
	}
	dst := make([]byte, 0, 7*len(c.IDs)+len(q.Rest)+256)
	if c.Warm {
		dst = append(dst, `{"max_tokens":1`...)
	} else {
		dst = q.AppendLimits(append(append(dst, `{"stream":true,"return_token_ids":true,"stream_options":`...), q.Options...), c.Output)
	}
	return append(append(openai.AppendIDList(append(dst, `,"prompt":`...), c.IDs), q.Rest...), '}')
}

// answerOnly are the members of a chat that do not matter for its prompt, and that the request for its ids states
// or has no use for.
var answerOnly = []string{"stream", "stream_options", "max_tokens", "max_completion_tokens", "min_tokens", "temperature", "n",
	"return_token_ids", "return_prompt_token_ids"}

// least are the least values of members that the request for a chat's ids replaces, so that it does not show whether the
// engine takes them. /generate takes others.
var least = map[string]float64{"max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 0, "temperature": 0}

// Tokenize implements dialect.Dialect. /tokenize knows no chat template: a chat is asked for one token, and
// its answer has the prompt's ids, whose KV the engine then has.
func (Dialect) Tokenize(r *openai.Request) dialect.Call {
	if !r.OneText() {
		return dialect.Call{}
	}
	if r.Endpoint == openai.Completions {
		return dialect.Call{Path: "/tokenize", Body: append(append([]byte(`{"prompt":`), r.Prompt()...), '}'), Tokens: "tokens"}
	}
	body := []byte(`{"max_tokens":1,"temperature":0,"return_prompt_token_ids":true`)
	valid := true
	r.EachMember(func(name string, whole, value []byte) bool {
		if low, ok := least[name]; ok {
			v := gjson.ParseBytes(value)
			valid = valid && (v.Type == gjson.Null || v.Type == gjson.Number && v.Num >= low)
		}
		if !slices.Contains(answerOnly, name) && !slices.Contains(fields.Withheld, name) {
			body = append(append(body, ','), whole...)
		}
		return true
	})
	if !valid {
		return dialect.Call{}
	}
	return dialect.Call{Path: r.Endpoint.Path(), Body: append(body, '}'), Tokens: "choices.0.prompt_token_ids", Computes: true}
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
	samples.TakeLoad(&m, running, waiting, usage)
	return m, nil
}
