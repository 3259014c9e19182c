package kvevents

import "github.com/tinylib/msgp/msgp"

// reader reads MessagePack values from b. The first value that is cut off or of another type
// than the caller wants sets failed, and all reads from then on return zeros.
type reader struct {
	b      []byte
	failed bool
}

// fail ends the reading.
func (r *reader) fail() { r.b, r.failed = nil, true }

// next returns the type of the next value; msgp.InvalidType at the end.
func (r *reader) next() msgp.Type { return msgp.NextType(r.b) }

// advance goes on with what is left after a value, and reports whether the value could be read.
func (r *reader) advance(left []byte, err error) bool {
	if err != nil {
		r.fail()
		return false
	}
	r.b = left
	return true
}

// isNil consumes a nil if it is next.
func (r *reader) isNil() bool {
	if !msgp.IsNil(r.b) {
		return false
	}
	r.b = r.b[1:]
	return true
}

// uint reads an integer of any width that is not negative.
func (r *reader) uint() uint64 {
	v, left, err := msgp.ReadUint64Bytes(r.b)
	if !r.advance(left, err) {
		return 0
	}
	return v
}

// float reads a number as a float.
func (r *reader) float() float64 {
	if t := r.next(); t != msgp.Float64Type && t != msgp.Float32Type {
		return float64(r.uint())
	}
	v, left, err := msgp.ReadFloat64Bytes(r.b)
	r.advance(left, err)
	return v
}

// bytes reads a string or binary value, which is valid as long as the input is.
func (r *reader) bytes() []byte {
	read := msgp.ReadStringZC
	if r.next() == msgp.BinType {
		read = msgp.ReadBytesZC
	}
	v, left, err := read(r.b)
	if !r.advance(left, err) {
		return nil
	}
	return v
}

// array reads the header of an array and returns its length, which is at most the number of
// bytes that are left.
func (r *reader) array() int {
	n, left, err := msgp.ReadArrayHeaderBytes(r.b)
	return r.count(n, left, err)
}

// mapping reads the header of a map and returns its number of pairs, bounded in the same way.
func (r *reader) mapping() int {
	n, left, err := msgp.ReadMapHeaderBytes(r.b)
	return r.count(n, left, err)
}

// count returns n, unless fewer bytes are left.
func (r *reader) count(n uint32, left []byte, err error) int {
	if !r.advance(left, err) {
		return 0
	}
	if int(n) > len(left) {
		r.fail()
		return 0
	}
	return int(n)
}

// skip reads over a value and returns its bytes.
func (r *reader) skip() []byte {
	before := r.b
	left, err := msgp.Skip(before)
	if !r.advance(left, err) {
		return nil
	}
	return before[:len(before)-len(left)]
}
