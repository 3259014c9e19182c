package publish

import "strings"

// blamedNames returns the names that the error text mentions. Envoy lists the
// clusters that it refused and applies the others of the same response.
func blamedNames(text string, names []string) []string {
	var out []string
	for _, name := range names {
		if mentionsName(text, name) {
			out = append(out, name)
		}
	}
	return out
}

// mentionsName reports whether a text contains a name by itself, and not as
// part of a longer one.
func mentionsName(text, name string) bool {
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
