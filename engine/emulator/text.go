package emulator

import (
	"bytes"
	"unicode/utf8"

	"github.com/cascadeinfer/cascade/engine/emulator/model"
)

// text turns a request's tokens into text: it joins characters that arrive in
// parts, and looks for stop strings, holding back what may be the beginning
// of one.
type text struct {
	vocabulary  *model.Vocabulary
	stops       []string
	includeStop bool
	minTokens   int // stop strings count only in what comes after so many

	decoder model.Decoder
	seen    int    // tokens taken
	held    []byte // text not given out yet
	from    int    // where in held stop strings are looked for
	hold    int    // how many bytes of held may begin a stop string
}

func newText(v *model.Vocabulary, q *request) *text {
	t := &text{vocabulary: v, stops: q.stops, includeStop: q.includeStop, minTokens: q.minTokens}
	for _, s := range q.stops {
		t.hold = max(t.hold, len(s)-1)
	}
	return t
}

// seed takes the ids before those that add will take, so that a character whose
// first bytes they are comes out whole. Their text is not given out again.
func (t *text) seed(ids []model.Token) {
	for _, id := range ids {
		t.held = t.decoder.Append(t.held[:0], t.vocabulary.Piece(id))
	}
	t.held = t.held[:0]
}

// tailBytes is how much of a text decides whether its end is a part of a
// character: a character has at most four bytes.
const tailBytes = 3

// maxTail bounds the ids that are looked at for tailBytes: many have no text.
const maxTail = 64

// tail returns the last of ids that a text goes on from.
func tail(v *model.Vocabulary, ids []model.Token) []model.Token {
	n := 0
	for at := len(ids) - 1; at >= max(0, len(ids)-maxTail); at-- {
		if n += len(v.Piece(ids[at])); n >= tailBytes {
			return ids[at:]
		}
	}
	return ids[max(0, len(ids)-maxTail):]
}

// add takes a token. When it completes a stop string, the text ends before it
// (or after it, with includeStop) and add returns it.
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

// take appends to dst what may be given out while the text goes on.
func (t *text) take(dst []byte) []byte {
	n := max(0, len(t.held)-t.hold)
	for n > 0 && n < len(t.held) && !utf8.RuneStart(t.held[n]) {
		n--
	}
	dst = append(dst, t.held[:n]...)
	t.held = t.held[:copy(t.held, t.held[n:])]
	t.from = max(0, t.from-n)
	return dst
}

// rest appends all that is left, at the end of the text.
func (t *text) rest(dst []byte) []byte {
	dst = append(dst, t.decoder.Flush(t.held)...)
	t.held = t.held[:0]
	return dst
}

// after is take or rest, by how the text stands.
func (t *text) after(end ending, dst []byte) []byte {
	if end.reason != "" {
		return t.rest(dst)
	}
	return t.take(dst)
}
