package publish

import (
	"regexp"
	"strings"

	"github.com/cascadeinfer/cascade/internal/cleantext"
)

// debugMark begins the word that protobuf's C++ library prints before a quoted
// message, so that programs do not rely on its text format.
const debugMark = "goo.gle/debug"

// Bounds of an error text.
const (
	maxRawText = 64 << 10 // bytes that are read
	// maxQuoted is the longest quoted string that is kept, in bytes. Names are
	// shorter; keys and certificates are longer.
	maxQuoted = 100
)

// truncationMark is Envoy's mark at the end of a truncated text.
const truncationMark = "...(truncated)"

// quotedField matches one field of a quoted message, after withoutBraces.
var quotedField = regexp.MustCompile(`^\s*[a-z][a-z0-9_]*(?:: *(?:"[^"]*"|[^\s"]+)|\s*\{…\}?)`)

// redact returns the error text of a NACK in a form that can be logged, stored and
// displayed: shortened, and without the quoted resources, which are long and may
// contain secrets.
func redact(text string) string {
	text = strings.ReplaceAll(sanitize(text, maxRawText), truncationMark, "")
	before, after, quotes := strings.Cut(text, debugMark)
	text = withoutBraces(before) // the quoted message follows
	if quotes && strings.TrimSpace(before) == "" {
		// The quoted message comes first, and the reason after it unless it was
		// cut.
		_, text, _ = strings.Cut(withoutBraces(after), " ")
		for at := quotedField.FindStringIndex(text); at != nil; at = quotedField.FindStringIndex(text) {
			text = text[at[1]:]
		}
	}
	text = strings.Join(strings.Fields(withoutLongQuotes(text)), " ")
	text = strings.TrimRight(text, " :;,(")
	switch {
	case text == "" && quotes:
		return "the proxy quotes the resource and gives no reason; see its log"
	case text == "":
		return "no reason given"
	}
	return sanitize(text, maxErrorText)
}

// withoutBraces replaces the text in braces, which contains the fields of quoted
// messages. An unclosed brace cuts the text.
func withoutBraces(text string) string {
	var out strings.Builder
	depth := 0
	for i := range len(text) {
		switch c := text[i]; {
		case c == '{':
			if depth == 0 {
				out.WriteString("{…")
			}
			depth++
		case c == '}' && depth > 0:
			if depth--; depth == 0 {
				out.WriteByte('}')
			}
		case depth == 0:
			out.WriteByte(c)
		}
	}
	return out.String()
}

// withoutLongQuotes shortens long quoted strings and an unclosed one.
func withoutLongQuotes(text string) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, `"`)
		out.WriteString(before)
		if !found {
			return out.String()
		}
		in, after, closed := strings.Cut(rest, `"`)
		if len(in) > maxQuoted || !closed && len(rest) > maxQuoted {
			in = "…"
		}
		out.WriteString(`"` + in + `"`)
		if !closed {
			return out.String()
		}
		text = after
	}
}

// sanitize returns a client's text as valid UTF-8 without control characters,
// cut to at most the given bytes.
func sanitize(text string, most int) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) > most {
		return cleantext.Printable(text, most) + "…"
	}
	return cleantext.Printable(text, most)
}
