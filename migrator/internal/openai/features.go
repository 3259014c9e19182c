package openai

import (
	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/policies"
)

// exactOnly are the features whose unstreamed answer cannot be assembled from a
// stream, byte for byte. Logprobs are another one.
const exactOnly = policies.Choices | policies.Prompts | policies.Echo | policies.PromptLogprobs |
	policies.Tools | policies.ForcedTools | policies.Unreadable

// featureOf returns the features that one field asks for. Those of the API, and min_tokens, have the same
// meaning to all engines.
func (f *Fields) featureOf(name string, v gjson.Result) policies.Features {
	set := func(features policies.Features, on bool) policies.Features {
		if on {
			return features
		}
		return 0
	}
	number := func(features policies.Features, idle float64) policies.Features {
		switch v.Type {
		case gjson.Null:
			return 0
		case gjson.Number:
			return set(features, v.Num != idle)
		}
		return features | policies.Unreadable
	}
	given := v.Type != gjson.Null && v.Type != gjson.False && !(v.IsArray() && !nonEmpty(v)) && v.Raw != `""`
	switch name {
	case "n", "best_of":
		return number(policies.Choices, 1)
	case "echo":
		return set(policies.Echo, given)
	case "tools", "functions":
		return set(policies.Tools, given)
	case "tool_choice", "function_call":
		return set(policies.Tools, v.Str == "auto") | set(policies.ForcedTools, given && v.Str != "none" && v.Str != "auto")
	case "response_format":
		return set(policies.Structured, given && v.Get("type").Str != "text")
	case "presence_penalty", "frequency_penalty":
		return number(policies.Penalties, 0)
	case "min_tokens":
		return number(policies.MinTokens, 0)
	case "seed":
		return set(policies.Seed, given)
	case "stop":
		return set(policies.Stop, given)
	case "include_reasoning":
		return set(policies.HiddenTokens, v.Type == gjson.False)
	case "suffix":
		return set(policies.Unreadable, given)
	}
	return set(f.Features[name], given)
}

func nonEmpty(v gjson.Result) bool {
	found := false
	v.ForEach(func(_, _ gjson.Result) bool { found = true; return false })
	return found
}

// promptFeature returns Prompts if there are several prompts, and 0 for one
// prompt: text, token ids, or either alone in a list.
func promptFeature(b []byte, prompt span) (f policies.Features) {
	if b[prompt.from] != '[' {
		return 0
	}
	n := 0
	eachMember(b, prompt, func(_ []byte, _, e span) bool {
		if c := b[e.from]; c != '"' && c != '[' {
			return false // a list of ids: one prompt
		}
		if n++; n > 1 {
			f = policies.Prompts
		}
		return f == 0
	})
	return f
}

func messagesFeature(b []byte, messages span) (f policies.Features) {
	eachMember(b, messages, func(_ []byte, _, message span) bool {
		eachMember(b, message, func(name []byte, _, content span) bool {
			if string(name) == "content" && b[content.from] == '[' {
				eachMember(b, content, func(_ []byte, _, part span) bool {
					if b[part.from] == '{' && gjson.Get(unsafeString(part.of(b)), "type").Str != "text" {
						f = policies.Multimodal
					}
					return true
				})
			}
			return true
		})
		return f == 0
	})
	return f
}
