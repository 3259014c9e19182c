package host

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
)

// The parts of the binary format that this file reads or writes.
const (
	headerSize   = 8
	sectionData  = 11
	sectionCount = 12 // the number of segments, for instructions that refer to them
	opI32Const   = 0x41
	opEnd        = 0x0b
)

// maxZeroFill is the largest gap between two segments that is filled with zeros. A
// segment costs the engine some 150 bytes per module and 24 per instance.
const maxZeroFill = 64

// maxSegments is the number of separate segments above which no more are joined,
// because each further segment is compared with all of them.
const maxSegments = 256

// joinData joins data segments with small gaps between them, in a module that package
// meter wrote. Go's linker omits every short run of zeros: a module has 23,000
// segments, but as few as 5 when the gaps are filled. The memory is the same.
func joinData(code []byte) []byte {
	if len(code) < headerSize {
		return code
	}
	for at := headerSize; at < len(code); {
		begin, id := at, code[at]
		size, n := binary.Uvarint(code[at+1:])
		at += 1 + n
		if n <= 0 || size > uint64(len(code)-at) || id == sectionCount {
			return code
		}
		end := at + int(size)
		if id == sectionData {
			joined, ok := joinSegments(code[at:end])
			if !ok {
				return code
			}
			out := append(make([]byte, 0, len(code)+len(joined)), code[:begin]...)
			out = binary.AppendUvarint(append(out, id), uint64(len(joined)))
			return append(append(out, joined...), code[end:]...)
		}
		at = end
	}
	return code
}

// segment is a range of the initial memory.
type segment struct {
	at    uint32
	bytes []byte
}

// joinSegments joins the segments in a data section. It returns false if a segment is
// passive, or its address is not a constant.
func joinSegments(section []byte) ([]byte, bool) {
	count, n := binary.Uvarint(section)
	if n <= 0 {
		return nil, false
	}
	rest := section[n:]
	var all []segment
	for range count {
		s, size, ok := readSegment(rest)
		if !ok {
			return nil, false
		}
		rest = rest[size:]
		if last := len(all) - 1; last >= 0 && canJoin(all, s) {
			l := &all[last]
			l.bytes = append(append(l.bytes, make([]byte, uint64(s.at)-l.end())...), s.bytes...)
		} else {
			s.bytes = bytes.Clone(s.bytes)
			all = append(all, s)
		}
	}
	if len(rest) > 0 {
		return nil, false
	}
	out := binary.AppendUvarint(nil, uint64(len(all)))
	for _, s := range all {
		out = appendSigned(append(out, 0, opI32Const), int32(s.at))
		out = binary.AppendUvarint(append(out, opEnd), uint64(len(s.bytes)))
		out = append(out, s.bytes...)
	}
	return out, true
}

// end returns the address after the segment.
func (s segment) end() uint64 { return uint64(s.at) + uint64(len(s.bytes)) }

// canJoin reports whether a segment can be joined with the last one: the gap between
// them is small and no earlier segment writes to it.
func canJoin(all []segment, s segment) bool {
	before, end := all[:len(all)-1], all[len(all)-1].end()
	if uint64(s.at) < end || uint64(s.at)-end > maxZeroFill || len(before) > maxSegments {
		return false
	}
	return !slices.ContainsFunc(before, func(b segment) bool { return uint64(b.at) < uint64(s.at) && b.end() > end })
}

// readSegment decodes the segment at the beginning of b. It returns the segment and the
// size of its encoding.
func readSegment(b []byte) (s segment, size int, ok bool) {
	if len(b) < 2 || b[0] != 0 || b[1] != opI32Const {
		return s, 0, false
	}
	at, n := signed(b[2:])
	size = 2 + n
	if n == 0 || size >= len(b) || b[size] != opEnd {
		return s, 0, false
	}
	size++
	length, n := binary.Uvarint(b[size:])
	size += n
	if n <= 0 || length > math.MaxInt32 || length > uint64(len(b)-size) {
		return s, 0, false
	}
	end := size + int(length)
	return segment{uint32(at), b[size:end:end]}, end, true
}

// signed decodes a signed LEB128 number of 32 bits. n is the size of its encoding, 0 if
// it is malformed.
func signed(b []byte) (v int32, n int) {
	x := int64(0)
	for n < len(b) && n < 5 {
		c := b[n]
		x |= int64(c&0x7f) << (7 * n)
		if n++; c < 0x80 {
			if c&0x40 != 0 {
				x |= -1 << (7 * n)
			}
			return int32(x), n
		}
	}
	return 0, 0
}

func appendSigned(b []byte, v int32) []byte {
	for ; v < -64 || v > 63; v >>= 7 {
		b = append(b, byte(v)|0x80)
	}
	return append(b, byte(v)&0x7f)
}
