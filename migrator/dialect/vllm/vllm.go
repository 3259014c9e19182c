// Package vllm is the dialect of vLLM, 0.12 and later. The emulator speaks it, too.
package vllm

import (
	"regexp"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
)

// Dialect is vLLM's.
type Dialect struct{}

var _ dialect.KV = Dialect{}

// fields are the members that vLLM adds to the API. The guided_ ones are those of older releases.
var fields = &openai.Fields{
	IDs: "return_token_ids",
	Withheld: []string{"kv_transfer_params", "ec_transfer_params", "request_id",
		// SGLang's: an engine of a kind that is not known yet gets vLLM's dialect.
		"rid", "bootstrap_host", "bootstrap_port", "bootstrap_room", "session_params", "data_parallel_rank",
		"routed_dp_rank", "disagg_prefill_dp_rank"},
	Nested: "vllm_xargs", // its members get into the same table as kv_transfer_params
	Features: map[string]policies.Features{
		"use_beam_search": policies.Choices, "prompt_logprobs": policies.PromptLogprobs, "prompt_embeds": policies.Multimodal,
		"structured_outputs": policies.Structured, "structural_tag": policies.Structured, "guided_json": policies.Structured,
		"guided_regex": policies.Structured, "guided_choice": policies.Structured, "guided_grammar": policies.Structured,
		"bad_words": policies.BadWords, "thinking_token_budget": policies.ThinkingBudget, "return_prompt_text": policies.Unreadable,
	},
	Tied:       []string{"logits_processors"},
	PromptOnly: []string{"truncate_prompt_tokens", "chat_template", "documents", "add_generation_prompt", "continue_final_message"},
}

var capabilities = dialect.Capabilities{
	Name: "vllm", Fields: fields, VersionPath: "/version", LoadPath: "/metrics", HealthPath: "/health",
	Counters: []string{"vllm:iteration_tokens_total_count", "vllm:generation_tokens_total", "vllm:prompt_tokens_total",
		"vllm:kv_cache_usage_perc", "vllm:num_preemptions_total", "vllm:prefix_cache_queries_total"},
	Text:        "prompt",
	OutputLimit: regexp.MustCompile(`max_tokens=(\d{1,9}), got`),
}

// Capabilities implements dialect.Dialect.
func (Dialect) Capabilities() dialect.Capabilities { return capabilities }

// Tokenize implements dialect.Dialect, with the members of a request that /tokenize knows, too.
func (Dialect) Tokenize(r *openai.Request) dialect.Call {
	if !r.OneText() {
		return dialect.Call{}
	}
	chat, same, out := r.Endpoint == openai.Chat, true, append(make([]byte, 0, len(r.Prompt())+256), '{')
	r.EachMember(func(name string, whole, value []byte) bool {
		switch name {
		case "model", "add_special_tokens":
		case "prompt":
			if chat {
				return true
			}
		case "messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs":
			if !chat {
				return true
			}
			if same = name != "chat_template_kwargs" || isPlainKwargs(value); !same {
				return false
			}
		case "chat_template", "truncate_prompt_tokens", "documents", "functions", "tool_choice", "reasoning_effort", "mm_processor_kwargs", "prompt_embeds", "suffix":
			// The prompt depends on these, and /tokenize does not know them, or should not get them.
			same = gjson.ParseBytes(value).Type == gjson.Null
			return same
		default:
			return true
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, whole...)
		return true
	})
	if !same {
		return dialect.Call{}
	}
	return dialect.Call{Path: "/tokenize", Body: append(out, '}'), Tokens: "tokens"}
}

// isPlainKwargs returns whether none of a template's arguments replaces the template itself, or
// makes the engine tokenize where it renders: releases have passed both on.
func isPlainKwargs(kwargs []byte) bool {
	plain := true
	gjson.ParseBytes(kwargs).ForEach(func(name, _ gjson.Result) bool {
		plain = name.Str != "chat_template" && name.Str != "tokenize"
		return plain
	})
	return plain
}
