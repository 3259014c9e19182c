package kvbatch

import (
	"encoding/binary"
	"math"
)

// reader reads MessagePack values from b. The first value that is cut off or of another type
// than the caller wants sets failed, and all reads from then on return zeros.
type reader struct {
	b      []byte
	failed bool
}

// maxNesting bounds the nesting of values that are skipped.
const maxNesting = 16

// fail ends the reading.
func (r *reader) fail() {
	r.b, r.failed = nil, true
}

// take returns the next n bytes, or nil.
func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.fail()
		return nil
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

// next returns the first byte of the next value; 0xc1, which begins none, at the end.
func (r *reader) next() byte {
	if len(r.b) == 0 {
		r.fail()
		return 0xc1
	}
	return r.b[0]
}

// number reads an unsigned big-endian number of n bytes.
func (r *reader) number(n int) uint64 {
	b := r.take(n)
	if b == nil {
		return 0
	}
	var full [8]byte
	copy(full[8-n:], b)
	return binary.BigEndian.Uint64(full[:])
}

// isNil consumes a nil if it is next.
func (r *reader) isNil() bool {
	if r.next() != 0xc0 {
		return false
	}
	r.b = r.b[1:]
	return true
}

// uint reads an integer of any width that is not negative.
func (r *reader) uint() uint64 {
	c := r.next()
	switch {
	case c < 0x80:
		r.b = r.b[1:]
		return uint64(c)
	case c >= 0xcc && c <= 0xcf:
		r.b = r.b[1:]
		return r.number(1 << (c - 0xcc))
	case c >= 0xd0 && c <= 0xd3: // signed
		r.b = r.b[1:]
		width := 1 << (c - 0xd0)
		v := r.number(width)
		if v>>(8*width-1) == 0 {
			return v
		}
	}
	r.fail()
	return 0
}

// float reads a number as a float.
func (r *reader) float() float64 {
	switch r.next() {
	case 0xcb:
		r.b = r.b[1:]
		return math.Float64frombits(r.number(8))
	case 0xca:
		r.b = r.b[1:]
		return float64(math.Float32frombits(uint32(r.number(4))))
	}
	return float64(r.uint())
}

// bytes reads a string or binary value, which is valid as long as the input is.
func (r *reader) bytes() []byte {
	c := r.next()
	width := 0
	switch {
	case c >= 0xa0 && c <= 0xbf:
		r.b = r.b[1:]
		return r.take(int(c & 31))
	case c >= 0xc4 && c <= 0xc6:
		width = 1 << (c - 0xc4)
	case c >= 0xd9 && c <= 0xdb:
		width = 1 << (c - 0xd9)
	default:
		r.fail()
		return nil
	}
	r.b = r.b[1:]
	n := r.number(width)
	if n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	return r.take(int(n))
}

// array reads the header of an array and returns its length, which is at most the number of
// bytes that are left.
func (r *reader) array() int { return r.header(0x90, 0xdc, 1) }

// mapping reads the header of a map and returns its number of pairs, bounded in the same way.
func (r *reader) mapping() int { return r.header(0x80, 0xde, 2) }

func (r *reader) header(fixed, long byte, values uint64) int {
	c := r.next()
	var n uint64
	switch {
	case c&0xf0 == fixed:
		r.b = r.b[1:]
		n = uint64(c & 15)
	case c == long || c == long+1:
		r.b = r.b[1:]
		n = r.number(2 << (c - long))
	default:
		r.fail()
		return 0
	}
	if n*values > uint64(len(r.b)) {
		r.fail()
		return 0
	}
	return int(n)
}

// skip reads over a value and returns its bytes.
func (r *reader) skip() []byte {
	before := r.b
	r.skipNested(maxNesting)
	if r.failed {
		return nil
	}
	return before[:len(before)-len(r.b)]
}

func (r *reader) skipNested(nesting int) {
	c := r.next()
	values := 0
	switch {
	case nesting == 0:
		r.fail()
	case c < 0x80 || c >= 0xe0 || c == 0xc0 || c == 0xc2 || c == 0xc3:
		r.take(1)
	case c&0xf0 == 0x80 || c == 0xde || c == 0xdf:
		values = 2 * r.mapping()
	case c&0xf0 == 0x90 || c == 0xdc || c == 0xdd:
		values = r.array()
	case c >= 0xcc && c <= 0xd3:
		r.take(1 + 1<<(c&3))
	case c == 0xca:
		r.take(5)
	case c == 0xcb:
		r.take(9)
	case c >= 0xd4 && c <= 0xd8: // extensions of 1, 2, 4, 8 and 16 bytes
		r.take(2 + 1<<(c-0xd4))
	case c >= 0xc7 && c <= 0xc9: // extensions
		r.take(1)
		if n := r.number(1 << (c - 0xc7)); n < uint64(len(r.b)) {
			r.take(1 + int(n))
		} else {
			r.fail()
		}
	default:
		r.bytes()
	}
	for ; values > 0 && !r.failed; values-- {
		r.skipNested(nesting - 1)
	}
}
