// Package openai reads and edits the bytes of the OpenAI API: request bodies, the
// server-sent events of a streamed answer, and the body of an unstreamed answer.
// What engines add to the API is the business of migrator/dialect.
//
// It is pure: no connection, no clock. It is not a model of the API: everything
// that it does not name travels verbatim. The invariant: bytes that no edit
// changes are the sender's bytes, in the sender's order, so that an answer which
// passed through the front end equals the engine's own.
package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unsafe"

	"github.com/tidwall/gjson"
)

// Endpoint is one of the two generating endpoints.
type Endpoint int

// The endpoints whose streams a front end owns.
const (
	Completions Endpoint = iota // POST /v1/completions
	Chat                        // POST /v1/chat/completions
)

// EndpointOf returns the endpoint of a path of either.
func EndpointOf(path string) Endpoint {
	if path == Chat.Path() {
		return Chat
	}
	return Completions
}

// Path returns the endpoint's URL path.
func (e Endpoint) Path() string {
	if e == Chat {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

// MaxDepth bounds the nesting of a JSON text, so that a hostile one cannot
// grow a recursive reader's stack.
const MaxDepth = 512

// span is a range of bytes, [from, to). The zero span means "absent"; no JSON
// value has it, because an object's first byte is its brace.
type span struct{ from, to int }

func (s span) of(b []byte) []byte { return b[s.from:s.to] }

// after returns the span in a text that has n bytes before the one of s.
func (s span) after(n int) span { return span{s.from + n, s.to + n} }

func (s span) absent() bool { return s.to == 0 }

func spanOf(v gjson.Result) span { return span{v.Index, v.Index + len(v.Raw)} }

// unsafeString returns the bytes as a string without a copy. The caller must not
// change them while the string is in use, and must not keep it.
func unsafeString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// CheckObject returns an error that says where b is not one valid JSON object.
func CheckObject(b []byte) error {
	if at := depthExceededAt(b); at >= 0 {
		return fmt.Errorf("nested deeper than %d levels at byte %d", MaxDepth, at)
	}
	if !gjson.ValidBytes(b) {
		// Only a bad text pays for a reader that reports the offset.
		var syntax *json.SyntaxError
		if err := json.Unmarshal(b, new(json.RawMessage)); errors.As(err, &syntax) {
			return fmt.Errorf("not valid JSON at byte %d: %v", syntax.Offset, err)
		}
		return errors.New("not valid JSON")
	}
	if first := bytes.TrimLeft(b, " \t\r\n"); len(first) == 0 || first[0] != '{' {
		return errors.New("not a JSON object")
	}
	return nil
}

// depthExceededAt returns the offset at which brackets outside strings nest
// deeper than MaxDepth, or −1.
func depthExceededAt(b []byte) int {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '{', '[':
			if depth++; depth > MaxDepth {
				return i
			}
		case '}', ']':
			depth--
		case '"':
			end := closingQuote(b, i+1)
			if end < 0 {
				return -1
			}
			i = end
		}
	}
	return -1
}

// closingQuote returns the offset of the quote that ends the string whose first
// byte is at from, or -1.
func closingQuote(b []byte, from int) int {
	for i := from; ; {
		q := bytes.IndexByte(b[i:], '"')
		if q < 0 {
			return -1
		}
		q += i
		slashes := 0
		for q-slashes > from && b[q-slashes-1] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return q
		}
		i = q + 1
	}
}
