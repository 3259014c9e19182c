package policy

import (
	"os"

	"github.com/cascadeinfer/cascade/wasm/host"
)

// mostReserved is the size up to which the memory of records is reserved, in bytes.
const mostReserved = 4 << 10

// line is the size of a cache line, in bytes.
const line = 64

// ring holds the records of one instance. The records between its length and capacity
// are still unused and may have reserved memory.
type ring []host.Record

// reserve allocates memory for frames and outputs of the given sizes for the first
// unused records, and touches each page of it: page faults cost the first calls after a
// swap a microsecond each.
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
