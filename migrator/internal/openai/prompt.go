package openai

import (
	"errors"
	"math"
	"slices"
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/policies"
)

// otherPrompt are the features of requests whose tokens are not those of one text prompt.
const otherPrompt = policies.Prompts | policies.Multimodal | policies.Unreadable

// OneText reports whether the request's tokens are those of one text prompt, or of one list of messages.
func (r *Request) OneText() bool {
	return r.prompt.to != 0 && !r.Features.Has(otherPrompt) && r.body[r.prompt.from] == map[Endpoint]byte{Completions: '"', Chat: '['}[r.Endpoint]
}

// EachMember calls do for the members of the body, in its order, until do returns false. whole is a member with
// its name. Escapes in name are resolved.
func (r *Request) EachMember(do func(name string, whole, value []byte) bool) {
	eachMember(r.body, span{0, len(r.body)}, func(name []byte, whole, value span) bool {
		return do(unsafeString(name), whole.of(r.body), value.of(r.body))
	})
}

// Prompt returns the JSON text of the prompt or the messages, a part of the body; nil if
// there is none.
func (r *Request) Prompt() []byte {
	if r.prompt.to == 0 {
		return nil
	}
	return r.prompt.of(r.body)
}

// LearnPromptIDs records the token ids of the prompt, which the engine has stated.
func (r *Request) LearnPromptIDs(ids []uint32) { r.learnt = ids }

// PromptIDs returns the prompt's token ids if they were learnt, or if the prompt is a list of them, alone or as the
// only element of a list. It returns nil for any other prompt.
func (r *Request) PromptIDs() []uint32 {
	if r.learnt != nil {
		return r.learnt
	}
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

// IDsBelow reports whether all token ids in the members of Fields.IDLists are below most, and none is something else
// that an engine may take for a number.
func (r *Request) IDsBelow(most policies.Tokens) bool { return r.greatestID < float64(most) }

// greatestID returns the greatest number in a list and the lists in it, infinity for what is no id. Engines read a text
// as a number where the list cannot be one of texts: if only is true, if the list is in another one, or if it has
// numbers.
func greatestID(b []byte, list span, only bool) (greatest float64) {
	numbers, texts, others := false, false, false
	eachMember(b, list, func(_ []byte, _, v span) bool {
		switch c := b[v.from]; {
		case c == '[':
			greatest = max(greatest, greatestID(b, v, true))
		case c == '-' || c >= '0' && c <= '9':
			numbers = true
			n, err := strconv.ParseFloat(unsafeString(v.of(b)), 64)
			if err != nil || n < 0 || n != math.Trunc(n) {
				n = math.Inf(1)
			}
			greatest = max(greatest, n)
		case c == '"':
			texts = true
		default:
			others = true
		}
		return true
	})
	if numbers && (texts || others) || only && texts {
		return math.Inf(1)
	}
	return greatest
}

// ParseTokens returns the list of token ids at a path in an engine's answer.
func ParseTokens(answer []byte, path string) ([]uint32, error) {
	if err := CheckObject(answer); err != nil {
		return nil, errors.New("the answer is " + err.Error())
	}
	list := gjson.GetBytes(answer, path)
	if !list.IsArray() {
		return nil, errors.New("the answer has no list of tokens")
	}
	return appendIDs(make([]uint32, 0, len(list.Raw)/4), answer, []span{spanOf(list)})
}
