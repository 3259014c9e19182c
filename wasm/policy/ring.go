package policy

import (
	"os"

	"github.com/cascadeinfer/cascade/wasm/host"
)

// mostReserved is the largest record that has its memory beforehand, in bytes.
const mostReserved = 4 << 10

// line is what caches hold together, in bytes.
const line = 64

// ring is the records of one instance. What lies between length and capacity is
// memory for those to come.
type ring []host.Record

// reserve gives the first records that are still to be written memory for frames
// and outputs of so many bytes, and touches it: to find it took the first calls
// after a swap a microsecond each.
func (r ring) reserve(frame, output int) {
	begin, each := len(r), frame+output
	if each > mostReserved {
		return
	}
	records := r[begin:max(begin, min(cap(r), DefaultKeep))]
	slab := make([]byte, len(records)*each)
	for at := 0; at < len(slab); at += os.Getpagesize() {
		slab[at] = 0
	}
	for n := range records {
		b := slab[n*each:]
		records[n].Frame, records[n].Output = b[:0:frame], b[frame:frame:each]
	}
}

// fetch brings the nth cache line of the next record, whose memory is still unwritten,
// into the processor's cache, so that a recorded call does not wait for all of them:
// while a policy is new, such a call would take half as long again.
func (r ring) fetch(n uint64) {
	next := &r[:len(r)+1][len(r)]
	if b := next.Frame[:cap(next.Frame)]; n*line < uint64(len(b)) {
		b[n*line] = 0
	}
}
