package openai

import (
	"errors"
	"slices"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/policies"
)

// otherPrompt are the features of requests whose tokens are not those of one text prompt.
const otherPrompt = policies.Prompts | policies.Multimodal | policies.Unreadable

// Prompt returns the JSON text of the prompt or the messages, a part of the body; nil if
// there is none.
func (r *Request) Prompt() []byte {
	if r.prompt.to == 0 {
		return nil
	}
	return r.prompt.of(r.body)
}

// PromptIDs returns the token ids of a prompt that is a list of them, alone or as the only
// element of a list; nil for any other prompt.
func (r *Request) PromptIDs() []uint32 {
	if r.Endpoint != Completions || r.Features.Has(otherPrompt) || r.prompt.to == 0 || r.body[r.prompt.from] != '[' {
		return nil
	}
	list := r.prompt.of(r.body)
	if slices.Contains(list, '"') {
		return nil // text
	}
	n := 1
	for _, c := range list {
		if c == ',' {
			n++
		}
	}
	ids, err := appendIDs(make([]uint32, 0, n), r.body, []span{r.prompt})
	if err != nil {
		return nil // the engine refuses it
	}
	return ids
}

// TokenizeBody returns the body of a request to /tokenize for the prompt's token ids; nil if
// the answer could differ from what the engine makes of the request itself, or if the engine
// would run a chat template of the client's: what it does with one, it does once, when it
// serves the request.
func (r *Request) TokenizeBody() []byte {
	prompt := r.Prompt()
	if prompt == nil || r.Features.Has(otherPrompt) || r.Endpoint == Completions && prompt[0] != '"' || r.Endpoint == Chat && prompt[0] != '[' {
		return nil
	}
	out, same := append(make([]byte, 0, len(prompt)+256), '{'), true
	eachMember(r.body, span{0, len(r.body)}, func(name []byte, whole, value span) bool {
		switch string(name) {
		case "model", "add_special_tokens":
		case "prompt":
			if r.Endpoint != Completions {
				return true
			}
		case "messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs":
			if r.Endpoint != Chat {
				return true
			}
			if string(name) == "chat_template_kwargs" && !isPlainKwargs(r.body, value) {
				same = false
				return false
			}
		case "chat_template", "truncate_prompt_tokens", "documents", "functions", "tool_choice", "reasoning_effort", "mm_processor_kwargs", "prompt_embeds", "suffix":
			// The prompt depends on these, and /tokenize does not know them, or should not get them.
			same = same && gjson.Parse(unsafeString(value.of(r.body))).Type == gjson.Null
			return same
		default:
			return true
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, whole.of(r.body)...)
		return true
	})
	if !same {
		return nil
	}
	return append(out, '}')
}

// isPlainKwargs returns whether none of a template's arguments replaces the template itself, or
// makes the engine tokenize where it renders: releases of vLLM have passed both on.
func isPlainKwargs(body []byte, kwargs span) bool {
	plain := true
	eachMember(body, kwargs, func(name []byte, _, _ span) bool {
		plain = string(name) != "chat_template" && string(name) != "tokenize"
		return plain
	})
	return plain
}

// ParseTokens returns the token ids in an answer of /tokenize.
func ParseTokens(answer []byte) ([]uint32, error) {
	if err := checkObject(answer); err != nil {
		return nil, errors.New("the answer is " + err.Error())
	}
	list := gjson.GetBytes(answer, "tokens")
	if !list.IsArray() {
		return nil, errors.New("the answer has no list of tokens")
	}
	return appendIDs(make([]uint32, 0, len(list.Raw)/4), answer, []span{spanOf(list)})
}
