package publish

import (
	"regexp"
	"strings"
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

// truncated is what Envoy puts where it cuts a text.
const truncated = "...(truncated)"

// field is one field of a quoted message, after withoutBraces.
var field = regexp.MustCompile(`^\s*[a-z][a-z0-9_]*(?:: *(?:"[^"]*"|[^\s"]+)|\s*\{…\}?)`)

// reason makes the text of a refusal fit to be logged, stored and shown: the
// resources that it quotes are cut out, because they are long and may hold
// secrets, and the rest is shortened.
func reason(text string) string {
	text = strings.ReplaceAll(clip(text, maxRawText), truncated, "")
	before, after, quotes := strings.Cut(text, debugMark)
	if quotes && strings.TrimSpace(before) != "" {
		text = before // the message follows
	}
	text = withoutBraces(text)
	if quotes && strings.TrimSpace(before) == "" {
		// The message comes first, and the reason, if it was not cut, behind it.
		_, text, _ = strings.Cut(withoutBraces(after), " ")
		for at := field.FindStringIndex(text); at != nil; at = field.FindStringIndex(text) {
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
	return clip(text, maxErrorText)
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

// blamed are those of the names that a refusal's text speaks of. Envoy lists the
// clusters that it did not take, and takes the others of the same response.
func blamed(text string, names []string) []string {
	var out []string
	for _, name := range names {
		if mentions(text, name) {
			out = append(out, name)
		}
	}
	return out
}

// mentions reports whether a name stands in a text by itself, and not as a part
// of a longer one.
func mentions(text, name string) bool {
	for at := 0; name != ""; {
		i := strings.Index(text[at:], name)
		if i < 0 {
			return false
		}
		from, to := at+i, at+i+len(name)
		if (from == 0 || !inName(text[from-1])) && (to == len(text) || !inName(text[to])) {
			return true
		}
		at = from + 1
	}
	return false
}

func inName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_/.%~", c) >= 0
}
