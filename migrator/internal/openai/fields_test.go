package openai

import "github.com/cascadeinfer/cascade/policies"

// extended are the fields of an engine that adds some of each kind.
var extended = &Fields{
	IDs: "return_token_ids", Withheld: []string{"kv_transfer_params", "ec_transfer_params", "request_id"}, Nested: "vllm_xargs",
	Features: map[string]policies.Features{"use_beam_search": policies.Choices, "prompt_logprobs": policies.PromptLogprobs,
		"guided_json": policies.Structured, "bad_words": policies.BadWords, "thinking_token_budget": policies.ThinkingBudget},
	Tied: []string{"logits_processors"}, PromptOnly: []string{"chat_template"},
}

// Parse parses a body for that engine.
func Parse(e Endpoint, body []byte) (Request, error) { return extended.Parse(e, body) }
