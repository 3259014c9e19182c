package meter

import "strconv"

// Error says why a module is refused, and where. Every refusal is of this type
// and deterministic: the same bytes are refused for the same reason everywhere.
type Error struct {
	Section string // "header", or the section's name in the specification
	Offset  int    // of the offending byte in the module
	Reason  string // what is wrong, with the limit where there is one
}

// Error is "code section, offset 0x1f3: reason".
func (e *Error) Error() string {
	section := e.Section
	if section != "header" {
		section += " section"
	}
	return section + ", offset 0x" + strconv.FormatInt(int64(e.Offset), 16) + ": " + e.Reason
}

// limit words an excess.
func limit(what string, n uint64, most int) string {
	return strconv.FormatUint(n, 10) + " " + what + ", at most " + strconv.Itoa(most) + " are allowed"
}

// index words an index out of range.
func index(what string, n uint32, have int) string {
	return what + " " + strconv.FormatUint(uint64(n), 10) + " does not exist: the module has " + strconv.Itoa(have)
}

// hexByte prints an opcode byte.
func hexByte(b byte) string {
	const digits = "0123456789abcdef"
	return "0x" + string([]byte{digits[b>>4], digits[b&15]})
}
