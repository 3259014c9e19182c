package policy

import (
	"os"
	"sync"

	"github.com/cascadeinfer/cascade/wasm/host"
)

// keptRings is how many rings wait for the next policy, at most.
const keptRings = 32

// mostReserved is the largest record that has its memory beforehand, in bytes.
const mostReserved = 4 << 10

// Rings keeps the records' memory of policies that have ended for those that come
// after them, the generations of one slot: memory that another processor has
// written takes a recorded call twice the time, and the first calls of a new policy
// would all be such. It is safe for concurrent use; the zero value is ready.
type Rings struct {
	mu   sync.Mutex
	kept []ring // guarded by mu: what was used last is last
}

// ring is the records of one instance, each with room for a frame and an output of
// so many bytes.
type ring struct {
	records       []host.Record
	frame, output int
}

// take returns a ring of n records, none of which is one yet.
func (r *Rings) take(n int) ring {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last := len(r.kept) - 1; last >= 0 && cap(r.kept[last].records) == n {
		took := r.kept[last]
		r.kept[last] = ring{}
		r.kept = r.kept[:last]
		return took
	}
	return ring{records: make([]host.Record, 0, n)}
}

// give takes a ring back of which nobody has anything any more. Its records are not
// looked at: that would take them out of the caches that they are in.
func (r *Rings) give(g ring) {
	if g.frame == 0 {
		return // it has no memory
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kept) < keptRings {
		g.records = g.records[:0]
		r.kept = append(r.kept, g)
	}
}

// reserve gives the first records that are still to be written memory for frames
// and outputs of so many bytes, unless they have it, and touches it: to find it
// took the first calls after a swap a microsecond each.
func (g *ring) reserve(frame, output int) {
	begin, each := len(g.records), frame+output
	if g.frame >= frame && g.output >= output || each > mostReserved {
		return
	}
	records := g.records[begin:max(begin, min(cap(g.records), DefaultKeep))]
	slab := make([]byte, len(records)*each)
	for at := 0; at < len(slab); at += os.Getpagesize() {
		slab[at] = 0
	}
	for n := range records {
		b := slab[n*each:]
		records[n].Frame, records[n].Output = b[:0:frame], b[frame:frame:each]
	}
	g.frame, g.output = frame, output
}
