package emulator

import (
	"bytes"
	"unicode/utf8"

	"github.com/cascadeinfer/cascade/engine/emulator/model"
)

// text converts a request's tokens to text. It joins characters that arrive in parts and
// searches for stop strings, holding back a possible beginning of one.
type text struct {
	vocabulary  *model.Vocabulary
	stops       []string
	includeStop bool
	minTokens   int // stop strings count only after so many tokens

	decoder model.Decoder
	begun   []byte // text of a prompt that ends inside a character; it comes before the first text
	seen    int    // tokens taken
	held    []byte // text not returned yet
	from    int    // where in held the search for stop strings continues
	hold    int    // number of bytes of held that may begin a stop string
}

func newText(v *model.Vocabulary, q *request) *text {
	t := &text{vocabulary: v, stops: q.stops, includeStop: q.includeStop, minTokens: q.minTokens}
	for _, s := range q.stops {
		t.hold = max(t.hold, len(s)-1)
	}
	return t
}

// seed takes the ids before the first token, so that a character that begins in them is
// complete. It does not return their text.
func (t *text) seed(ids []model.Token) {
	for _, id := range ids {
		t.held = t.decoder.Append(t.held[:0], t.vocabulary.Piece(id))
	}
	t.held = t.held[:0]
}

// begin takes a prompt. If its text ends inside a character, the first text after it will be
// that of the whole prompt, like vLLM's.
func (t *text) begin(prompt []model.Token) {
	var d model.Decoder
	for _, id := range tail(t.vocabulary, prompt) {
		d.Append(nil, t.vocabulary.Piece(id))
	}
	if d.Holds() {
		for _, id := range prompt {
			t.begun = t.decoder.Append(t.begun, t.vocabulary.Piece(id))
		}
	}
}

// takeBegun appends the text that precedes the first one.
func (t *text) takeBegun(dst []byte) []byte {
	dst = append(dst, t.begun...)
	t.begun = nil
	return dst
}

// tailBytes is the number of bytes of a text that decide whether its end is a part of a
// character, which has at most four bytes.
const tailBytes = 3

// maxTail bounds the ids that are examined for tailBytes: many have no text.
const maxTail = 64

// tail returns the last ids, from which a text continues.
func tail(v *model.Vocabulary, ids []model.Token) []model.Token {
	n := 0
	for at := len(ids) - 1; at >= max(0, len(ids)-maxTail); at-- {
		if n += len(v.Piece(ids[at])); n >= tailBytes {
			return ids[at:]
		}
	}
	return ids[max(0, len(ids)-maxTail):]
}

// add takes a token. If it completes a stop string, the text ends before it (or after it,
// with includeStop) and add returns it.
func (t *text) add(id model.Token) (stop string, stopped bool) {
	t.held = t.decoder.Append(t.held, t.vocabulary.Piece(id))
	t.seen++
	if t.seen <= t.minTokens {
		t.from = len(t.held)
		return "", false
	}
	first := -1
	for _, s := range t.stops {
		if at := bytes.Index(t.held[t.from:], []byte(s)); at >= 0 && (first < 0 || at < first) {
			first, stop = at, s
		}
	}
	if first < 0 {
		return "", false
	}
	first += t.from
	if t.includeStop {
		first += len(stop)
	}
	t.held = t.held[:first]
	t.decoder = model.Decoder{}
	return stop, true
}

// takeReady appends to dst what may be returned while the text continues.
func (t *text) takeReady(dst []byte) []byte {
	n := max(0, len(t.held)-t.hold)
	for n > 0 && n < len(t.held) && !utf8.RuneStart(t.held[n]) {
		n--
	}
	if n > 0 {
		dst = t.takeBegun(dst)
	}
	dst = append(dst, t.held[:n]...)
	t.held = t.held[:copy(t.held, t.held[n:])]
	t.from = max(0, t.from-n)
	return dst
}

// takeRest appends the rest at the end of the text.
func (t *text) takeRest(dst []byte) []byte {
	rest := t.decoder.Flush(t.held)
	if len(rest) > 0 {
		dst = t.takeBegun(dst)
	}
	dst = append(dst, rest...)
	t.held = t.held[:0]
	return dst
}

// takeAfter is takeReady or takeRest, depending on whether the text has ended.
func (t *text) takeAfter(end ending, dst []byte) []byte {
	if end.reason != "" {
		return t.takeRest(dst)
	}
	return t.takeReady(dst)
}
