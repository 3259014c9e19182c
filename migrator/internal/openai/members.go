package openai

import (
	"bytes"

	"github.com/tidwall/gjson"
)

// eachMember calls do for the members of an object, or for the elements of an
// array with empty names, until do returns false. b[at] must be valid JSON.
// Escapes in name are resolved.
//
// gjson's own walk unescapes every value on its way. For a prompt of hundreds of
// KiB that costs more than everything else that the front end does with it. This
// one finds the values and does not touch them.
func eachMember(b []byte, at span, do func(name []byte, whole, value span) bool) {
	i := skipBlanks(b, at.from)
	if i >= at.to || b[i] != '{' && b[i] != '[' {
		return
	}
	object := b[i] == '{'
	for i++; ; {
		i = skipBlanks(b, i)
		if i >= at.to || b[i] == '}' || b[i] == ']' {
			return
		}
		if b[i] == ',' {
			i++
			continue
		}
		start, name := i, []byte(nil)
		if object {
			end := skipValue(b, i)
			name = b[i+1 : end-1]
			if bytes.IndexByte(name, '\\') >= 0 {
				name = []byte(gjson.ParseBytes(b[i:end]).Str)
			}
			i = skipBlanks(b, skipBlanks(b, end)+1) // over the colon
		}
		end := skipValue(b, i)
		if !do(name, span{start, end}, span{i, end}) {
			return
		}
		i = end
	}
}

// skipBlanks returns the offset of the first byte from i on that is not white
// space.
func skipBlanks(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// skipValue returns the offset after the valid JSON value that begins at i.
func skipValue(b []byte, i int) int {
	depth := 0
	for ; i < len(b); i++ {
		switch b[i] {
		case '"':
			i = closingQuote(b, i+1)
			if depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
			if depth < 0 {
				return i // the end of the container of a bare number or literal
			}
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return i
			}
		}
	}
	return i
}
