package abi

import (
	"unsafe"

	"github.com/cascadeinfer/cascade/policies"
)

// bidRecord is the memory layout of a bid's record.
type bidRecord struct {
	load, start int64
	off, n      uint32
}

// name is the memory layout of a Go string.
type name struct {
	at unsafe.Pointer
	n  int
}

// decodeBids decodes the records into dst, which has the same length. It returns false
// if a name lies outside aux. It needs a third of the jumps of the portable version,
// each of which costs a guest in Go as much as ten instructions: parse has checked that
// the records lie inside the frame, so they need no further bounds checks.
func (p *frameAreas) decodeBids(dst []policies.Bid) bool {
	r := unsafe.Pointer(unsafe.SliceData(p.records))
	aux, most := unsafe.Pointer(unsafe.SliceData(p.aux)), uint64(len(p.aux))
	for i := range dst {
		from := (*bidRecord)(r)
		b := &dst[i]
		if uint64(from.off)+uint64(from.n) > most {
			return false
		}
		b.Load, b.Start = policies.Tokens(from.load), policies.Micros(from.start)
		// An empty name must not point behind the frame.
		*(*name)(unsafe.Pointer(&b.From)) = name{unsafe.Add(aux, from.off&uint32(-int64(from.n)>>63)), int(from.n)}
		r = unsafe.Add(r, p.stride)
	}
	return true
}
