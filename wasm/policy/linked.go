package policy

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// Linked is native policies whose calls are recorded as those of a module are:
// what a module is tried on while the native policy decides, and what a decision
// of it can be replayed from. A record of it has no module and no fuel.
//
// It is safe for concurrent use, takes no lock for calls that come with requests,
// and does not allocate for those once its records have their memory.
type Linked struct {
	native Native
	every  uint32
	now    func() policies.Micros
	calls  atomic.Uint64 // that were recorded
	ring   []note
	keep   int // bytes of records
	trims  sync.Mutex
}

// note is one record. Whoever turned taken from false to true owns the rest.
type note struct {
	taken  atomic.Bool
	record host.Record
	call   uint64 // 0: nothing is recorded
}

var (
	_ policies.Partitioner = (*Linked)(nil)
	_ policies.Refiner     = (*Linked)(nil)
	_ policies.Quoter      = (*Linked)(nil)
	_ policies.Selector    = (*Linked)(nil)
	_ policies.Detector    = (*Linked)(nil)
	_ policies.Placer      = (*Linked)(nil)
	_ Guard                = (*Linked)(nil)
)

// NewLinked returns native policies of which one call in every is recorded, on
// average; 0 means none. Every, Keep and Now are as in a Config; there is one
// ring for all callers, with DefaultKeepBytes.
func NewLinked(n Native, every, keep int, now func() policies.Micros) *Linked {
	if keep == 0 {
		keep = DefaultKeep
	}
	if now == nil {
		now = func() policies.Micros { return 0 }
	}
	return &Linked{native: n.filled(), every: uint32(max(every, 0)), now: now, ring: make([]note, keep), keep: DefaultKeepBytes}
}

// begin returns where a call is to be recorded, nil when it is not. Who finds
// its place taken records nothing.
func (l *Linked) begin() *note {
	if l.every == 0 || l.every > 1 && rand.Uint32N(l.every) != 0 {
		return nil
	}
	call := l.calls.Add(1)
	n := &l.ring[call%uint64(len(l.ring))]
	if !n.taken.CompareAndSwap(false, true) {
		return nil
	}
	n.call = call
	return n
}

// put encodes the words of a call; false when they fit no frame.
func put[W any](l *Linked, n *note, k abi.Kind, encode func([]byte, abi.Call, W) (int, error), words W) bool {
	r := &n.record
	r.Kind, r.Result, r.Output = k, 0, r.Output[:0]
	c := abi.Call{ID: n.call, Now: l.now(), Seed: mix(n.call)}
	if !perRequest(k) {
		c.Room = abi.MaxState // for modules that are tried on it
	}
	r.Frame = r.Frame[:cap(r.Frame)]
	size, err := encode(r.Frame, c, words)
	if err == abi.ErrShort {
		r.Frame = make([]byte, size)
		size, err = encode(r.Frame, c, words)
	}
	if err != nil {
		r.Frame, n.call = r.Frame[:0], 0
		return false
	}
	r.Frame = r.Frame[:size]
	return true
}

// end takes the answer over, which lies in the frame now, and clears that again.
func (n *note) end(result uint64) {
	r := &n.record
	if n.call != 0 {
		r.Result = result
		at, size := binary.LittleEndian.Uint32(r.Frame[56:]), binary.LittleEndian.Uint32(r.Frame[60:])
		out := r.Frame[at : at+size]
		r.Output = append(r.Output, out...)
		clear(out)
	}
	n.taken.Store(false)
}

// trim drops the oldest records of kinds that do not come with every request,
// beyond what may be kept, but not the last one. What is being written or read
// meanwhile stays until the next time.
func (l *Linked) trim() {
	l.trims.Lock()
	defer l.trims.Unlock()
	size, newest := 0, l.calls.Load()
	for i := range min(uint64(len(l.ring)), newest) {
		n := &l.ring[(newest-i)%uint64(len(l.ring))]
		if !n.taken.CompareAndSwap(false, true) {
			continue
		}
		if r := &n.record; n.call != 0 && !perRequest(r.Kind) {
			if size += held(r); size > l.keep && i > 0 {
				*r, n.call = host.Record{}, 0
			}
		}
		n.taken.Store(false)
	}
}

// Records returns what was recorded and not yet overwritten, oldest first, but
// for what is being written. The caller may keep all of it.
func (l *Linked) Records() []host.Record {
	type numbered struct {
		call uint64
		host.Record
	}
	var all []numbered
	for i := range l.ring {
		n := &l.ring[i]
		if !n.taken.CompareAndSwap(false, true) {
			continue
		}
		if n.call != 0 {
			r := n.record
			r.Frame, r.Output = slices.Clone(r.Frame), slices.Clone(r.Output)
			all = append(all, numbered{n.call, r})
		}
		n.taken.Store(false)
	}
	slices.SortFunc(all, func(a, b numbered) int { return int(int64(a.call - b.call)) })
	records := make([]host.Record, len(all))
	for i := range all {
		records[i] = all[i].Record
	}
	return records
}

// Select implements policies.Selector.
func (l *Linked) Select(bids []policies.Bid) int {
	winner := l.native.Selector.Select(bids)
	if n := l.begin(); n != nil {
		put(l, n, abi.Select, abi.EncodeSelectCall, bids)
		n.end(abi.EncodeSelectResult(winner))
	}
	return winner
}

// Quote implements policies.Quoter.
func (l *Linked) Quote(pos policies.Occupancy, h policies.Migration) (policies.Bid, bool) {
	bid, bids := l.native.Quoter.Quote(pos, h)
	if n := l.begin(); n != nil {
		if put(l, n, abi.Quote, abi.EncodeQuoteCall, abi.Ask{Position: pos, Handover: h}) {
			n.end(abi.EncodeQuoteResult(n.record.Frame, bid, bids))
		} else {
			n.end(0)
		}
	}
	return bid, bids
}

// Excess implements policies.Detector.
func (l *Linked) Excess(own, mean policies.Tokens) policies.Tokens {
	excess := l.native.Detector.Excess(own, mean)
	if n := l.begin(); n != nil {
		if put(l, n, abi.Outlier, putLoads, [2]policies.Tokens{own, mean}) {
			n.end(abi.EncodeOutlierResult(n.record.Frame, excess))
		} else {
			n.end(0)
		}
	}
	return excess
}

// Place implements policies.Placer.
func (l *Linked) Place(a policies.Arrival) policies.ReplicaID {
	peer := l.native.Placer.Place(a)
	if n := l.begin(); n != nil {
		put(l, n, abi.Place, abi.EncodePlaceCall, a)
		n.end(abi.EncodePlaceResult(a, peer))
	}
	return peer
}

// RefineFor is Refine: native policies keep no state.
func (l *Linked) RefineFor(_ *Memory, b policies.BoundaryView) policies.Tokens { return l.Refine(b) }

// PartitionFor is Partition.
func (l *Linked) PartitionFor(_ *Memory, w policies.Workload) (policies.Partition, error) {
	return l.Partition(w)
}

// GuardFor is Guard.
func (l *Linked) GuardFor(_ *Memory, ch abi.Change) (abi.Denial, bool) { return l.Guard(ch) }

// Refine implements policies.Refiner.
func (l *Linked) Refine(b policies.BoundaryView) policies.Tokens {
	at := l.native.Refiner.Refine(b)
	if n := l.begin(); n != nil {
		if put(l, n, abi.Refine, abi.EncodeRefineCall, b) {
			n.end(abi.EncodeRefineResult(n.record.Frame, at))
		} else {
			n.end(0)
		}
		l.trim()
	}
	return at
}

// Partition implements policies.Partitioner. Workloads that are invalid are not
// recorded: no module sees them.
func (l *Linked) Partition(w policies.Workload) (policies.Partition, error) {
	p, err := l.native.Partitioner.Partition(w)
	if err != nil && err != policies.ErrInfeasible {
		return p, err
	}
	if n := l.begin(); n != nil {
		if put(l, n, abi.Partition, abi.EncodePartitionCall, w) {
			n.end(abi.EncodePartitionResult(n.record.Frame, p, err == nil))
		} else {
			n.end(0)
		}
		l.trim()
	}
	return p, err
}

// Guard implements Guard.
func (l *Linked) Guard(ch abi.Change) (abi.Denial, bool) {
	d, denied := l.native.Guard.Guard(ch)
	if n := l.begin(); n != nil {
		if put(l, n, abi.Guard, abi.EncodeGuardCall, ch) {
			n.end(abi.EncodeGuardResult(n.record.Frame, d, denied))
		} else {
			n.end(0)
		}
		l.trim()
	}
	return d, denied
}
