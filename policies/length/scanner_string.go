package length

import (
	"math/bits"
	"unicode/utf8"
)

func (s *Scanner) beginString() {
	s.length, s.high, s.state = 0, 0, inString
}

// stringBytes reads up to the end of the string or its next escape and
// returns how many bytes it took.
func (s *Scanner) stringBytes(p []byte) int {
	n := plain(p)
	if n > 0 {
		s.high = 0
		s.length += int64(n)
		if s.keep != keepNothing {
			s.append(p[:n])
		}
	}
	if n == len(p) {
		return n
	}
	switch p[n] {
	case '"':
		s.endString()
	case '\\':
		s.state = inEscape
	default: // a control character
		s.state = broken
	}
	return n + 1
}

func (s *Scanner) endString() {
	if s.keep == keepKey {
		s.state = atColon
		s.role, s.register = s.member()
		return
	}
	s.stringValue()
	s.endValue()
}

// plain returns the length of p's prefix without quotes, backslashes and control
// characters. It tests eight bytes at a time, because prompts are long.
func plain(p []byte) int {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	i := 0
	for ; i+8 <= len(p); i += 8 {
		q := p[i : i+8 : i+8]
		w := uint64(q[0]) | uint64(q[1])<<8 | uint64(q[2])<<16 | uint64(q[3])<<24 |
			uint64(q[4])<<32 | uint64(q[5])<<40 | uint64(q[6])<<48 | uint64(q[7])<<56
		// x−ones borrows into the high bit of a byte that was 0. A borrow can propagate to the
		// byte above, never below: the lowest hit is exact.
		quote, back := w^(ones*'"'), w^(ones*'\\')
		hit := ((quote-ones)&^quote | (back-ones)&^back | (w-ones*0x20)&^w) & highs
		if hit != 0 {
			return i + bits.TrailingZeros64(hit)/8
		}
	}
	for ; i < len(p); i++ {
		if c := p[i]; c == '"' || c == '\\' || c < 0x20 {
			break
		}
	}
	return i
}

// escape reads the byte after a backslash.
func (s *Scanner) escape(c byte) {
	switch c {
	case 'u':
		s.hex, s.digits, s.state = 0, 0, inHex
		return
	case 'n':
		c = '\n'
	case 't':
		c = '\t'
	case 'r':
		c = '\r'
	case 'b':
		c = '\b'
	case 'f':
		c = '\f'
	case '"', '\\', '/':
	default:
		s.state = broken
		return
	}
	s.high = 0
	s.state = inString
	s.length++
	if s.keep != keepNothing {
		one := [1]byte{c}
		s.append(one[:])
	}
}

// hexDigit reads one of the four digits of \uXXXX. A lone surrogate becomes
// U+FFFD, three bytes; when its other half follows, the pair makes four.
func (s *Scanner) hexDigit(c byte) {
	switch {
	case '0' <= c && c <= '9':
		c -= '0'
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		c = c | 0x20 - 'a' + 10
	default:
		s.state = broken
		return
	}
	s.hex = s.hex<<4 | rune(c)
	if s.digits++; s.digits < 4 {
		return
	}
	s.state = inString
	r, high := s.hex, s.high
	if high != 0 && 0xDC00 <= r && r < 0xE000 {
		s.high = 0
		s.truncate(3)
		s.appendRune(0x10000 + (high-0xD800)<<10 + (r - 0xDC00))
		return
	}
	s.high = 0
	switch {
	case 0xD800 <= r && r < 0xDC00:
		s.high, r = r, utf8.RuneError
	case 0xDC00 <= r && r < 0xE000:
		r = utf8.RuneError
	}
	s.appendRune(r)
}

// appendRune counts a character, and stores it if it is wanted.
func (s *Scanner) appendRune(r rune) {
	var buf [utf8.UTFMax]byte
	n := utf8.EncodeRune(buf[:], r)
	s.length += int64(n)
	if s.keep != keepNothing {
		s.append(buf[:n])
	}
}

// append appends to the stored string; one that does not fit is marked as too long.
func (s *Scanner) append(p []byte) {
	buf, n := s.key[:], &s.keyLen
	if s.keep == keepModel {
		buf, n = s.model[:], &s.modelLen
	}
	if *n+len(p) > len(buf) {
		*n = len(buf) + 1
		return
	}
	*n += copy(buf[*n:], p)
}

// truncate removes the last n bytes of the string.
func (s *Scanner) truncate(n int) {
	s.length -= int64(n)
	switch {
	case s.keep == keepKey && s.keyLen <= len(s.key):
		s.keyLen -= n
	case s.keep == keepModel && s.modelLen <= MaxModel:
		s.modelLen -= n
	}
}
