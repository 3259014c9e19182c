package meter

import "strconv"

// Error is the reason why a module is refused. Refusals are deterministic: the same
// bytes are refused for the same reason everywhere.
type Error struct {
	Section string // "header", or the section's name in the specification
	Offset  int    // of the offending byte in the module
	Reason  string // with the limit, if the module exceeds one
}

// Error returns "code section, offset 0x1f3: reason".
func (e *Error) Error() string {
	section := e.Section
	if section != "header" {
		section += " section"
	}
	return section + ", offset 0x" + strconv.FormatInt(int64(e.Offset), 16) + ": " + e.Reason
}

// limit returns the reason for an exceeded limit.
func limit(what string, n uint64, most int) string {
	return strconv.FormatUint(n, 10) + " " + what + ", at most " + strconv.Itoa(most) + " are allowed"
}

// index returns the reason for an index out of range.
func index(what string, n uint32, have int) string {
	return what + " " + strconv.FormatUint(uint64(n), 10) + " does not exist: the module has " + strconv.Itoa(have)
}

// hexByte formats an opcode byte.
func hexByte(b byte) string {
	const digits = "0123456789abcdef"
	return "0x" + string([]byte{digits[b>>4], digits[b&15]})
}
