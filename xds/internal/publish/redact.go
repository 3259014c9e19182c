package publish

import (
	"regexp"
	"strings"
	"unicode"
)

// debugMark is the word before a quoted message in what protobuf's C++ library
// prints, so that nobody takes the text for something stable.
const debugMark = "goo.gle/debug"

// Bounds of what a refusal's text is read of.
const (
	maxRawText = 64 << 10
	// maxQuoted is the longest quoted string that is kept, in bytes. Names are
	// shorter; keys and certificates are not.
	maxQuoted = 100
)

// truncationMark is what Envoy puts where it cuts a text.
const truncationMark = "...(truncated)"

// quotedField is one field of a quoted message, after withoutBraces.
var quotedField = regexp.MustCompile(`^\s*[a-z][a-z0-9_]*(?:: *(?:"[^"]*"|[^\s"]+)|\s*\{…\}?)`)

// redact makes the text of a refusal fit to be logged, stored and shown: the
// resources that it quotes are cut out, because they are long and may hold
// secrets, and the rest is shortened.
func redact(text string) string {
	text = strings.ReplaceAll(sanitize(text, maxRawText), truncationMark, "")
	before, after, quotes := strings.Cut(text, debugMark)
	if quotes && strings.TrimSpace(before) != "" {
		text = before // the message follows
	}
	text = withoutBraces(text)
	if quotes && strings.TrimSpace(before) == "" {
		// The message comes first, and the reason, if it was not cut, behind it.
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

// withoutBraces replaces what stands in braces, the fields of quoted messages.
// Braces that do not end cut the text.
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

// withoutLongQuotes shortens long quoted strings, and one that does not end.
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

// sanitize makes a client's text safe to log and to show.
func sanitize(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if len(text) <= most {
		return text
	}
	for !isBoundary(text, most) {
		most--
	}
	return text[:most] + "…"
}

func isBoundary(text string, i int) bool { return text[i]&0xC0 != 0x80 }
