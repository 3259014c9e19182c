package openai

import (
	"bytes"
	"net/http"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// Fields says what the members of a request's body mean to engines of one kind, beyond the OpenAI API.
// The zero value adds nothing. It does not change once it is in use.
type Fields struct {
	// IDs is the member that asks for token ids, with the value true; "" for none.
	IDs string
	// Withheld are the members that only the fleet itself may send: they name other engines' memory, or
	// the request at its engine.
	Withheld []string
	// Nested is an object whose members the engine reads like the body's own; "" for none.
	Nested string
	// Features are those of the members that have a value: neither null, false nor empty.
	Features map[string]policies.Features
	// Tied are the members with which a second engine may answer differently, for a reason that is no
	// feature.
	Tied []string
	// PromptOnly are the members that matter only for the prompt: engines that are given its ids do not
	// get them.
	PromptOnly []string
	// IDLists are the members that may be lists of token ids, or lists of such lists. The value is false for those that
	// may also be lists of texts. They are checked where the engines do not do it (Request.IDsBelow).
	IDLists map[string]bool
}

// withholds reports whether a member must not reach the engine.
func (f *Fields) withholds(name string) bool { return slices.Contains(f.Withheld, name) }

// RefusesIDs reports whether an engine's answer refuses a request because the front end asked for token ids in it.
func (f *Fields) RefusesIDs(status int, answer []byte) bool {
	return f.IDs != "" && (status == http.StatusBadRequest || status == http.StatusUnprocessableEntity) && bytes.Contains(answer, []byte(f.IDs))
}

// DropIDs returns body without the member that asks an engine for token ids.
func (f *Fields) DropIDs(body []byte) []byte {
	out := body
	eachMember(body, span{0, len(body)}, func(name []byte, whole, _ span) bool {
		if string(name) != f.IDs {
			return true
		}
		from, to := whole.from, whole.to
		if comma := bytes.LastIndexByte(body[:from], ','); comma >= 0 && len(bytes.TrimSpace(body[comma+1:from])) == 0 {
			from = comma
		} else if comma := bytes.IndexByte(body[to:], ','); comma >= 0 && len(bytes.TrimSpace(body[to:to+comma])) == 0 {
			to += comma + 1
		}
		out = slices.Concat(body[:from], body[to:])
		return false
	})
	return out
}
