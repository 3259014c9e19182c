package abi

import (
	"unsafe"

	"github.com/cascadeinfer/cascade/policies"
)

// bidRecord is a bid's record, as this machine has it in memory.
type bidRecord struct {
	load, start int64
	off, n      uint32
}

// name is a string as Go has it in memory.
type name struct {
	at unsafe.Pointer
	n  int
}

// bids decodes the records into dst, which is as long; false when a name lies
// outside aux. It does what the other version does with a third of the jumps, each
// of which costs a guest in Go as much as ten instructions: open has checked that
// the records are there, so that they need no more checks.
func (p *parts) bids(dst []policies.Bid) bool {
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
