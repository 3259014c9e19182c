// Package cleantext bounds texts that come from elsewhere, such as errors of engines and reasons of modules,
// before they are kept, logged or sent. Protobuf refuses a message with one string that is not valid UTF-8, so
// a text must not be cut within a character.
package cleantext

import (
	"strings"
	"unicode"
)

// Truncate returns at most the first n bytes of s, as valid UTF-8: a character that n would cut is left out, and
// so are bytes that are no character.
func Truncate(s string, n int) string { return strings.ToValidUTF8(s[:min(len(s), max(n, 0))], "") }

// Printable returns Truncate(s, n) with a space for each character that cannot be printed.
func Printable(s string, n int) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, Truncate(s, n))
}
