package policy

import (
	"cmp"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// NativeRecorder has native policies and records their calls like those of a module, so that
// modules can be tried on the records while the native policy decides, and decisions can be
// replayed. Its records have no module and no fuel.
//
// It is safe for concurrent use. Calls of kinds that decide for one request take no
// lock, and do not allocate once the records have their memory.
type NativeRecorder struct {
	native Native
	every  uint32
	now    func() policies.Micros
	calls  atomic.Uint64 // recorded calls
	ring   []entry
	keep   int // limit of the records, in bytes
	trims  sync.Mutex
}

// entry is one record. The goroutine that turned busy from false to true owns the
// rest.
type entry struct {
	busy   atomic.Bool
	record host.Record
	call   uint64 // 0 when nothing is recorded
}

// NewNativeRecorder returns native policies of which on average one call in every is
// recorded; 0 records none. Every, Keep and Now are as in a Config; there is one ring
// for all callers, with DefaultKeepBytes.
func NewNativeRecorder(n Native, every, keep int, now func() policies.Micros) *NativeRecorder {
	keep = cmp.Or(keep, DefaultKeep)
	if now == nil {
		now = func() policies.Micros { return 0 }
	}
	return &NativeRecorder{native: n.filled(), every: uint32(max(every, 0)), now: now, ring: make([]entry, keep), keep: DefaultKeepBytes}
}

// record records a call and its answer in an entry that begin returned.
func record[Q, A any](r *NativeRecorder, e *entry, k *adapter[Q, A], q Q, a A) {
	result := uint64(0)
	if encodeEntry(r, e, k, q) {
		var err error
		if result, err = k.EncodeResult(e.record.Frame, q, a); err != nil {
			e.call = 0 // 0 marks an entry that Records omits, so that shadow modules skip the call
		}
	}
	e.end(result)
	if !perRequest[k.Kind] {
		r.trim()
	}
}

// begin returns the entry in which to record a call; nil when it is not recorded,
// because it is not its turn or the entry is busy.
func (r *NativeRecorder) begin() *entry {
	if r.every == 0 || r.every > 1 && rand.Uint32N(r.every) != 0 {
		return nil
	}
	call := r.calls.Add(1)
	e := &r.ring[call%uint64(len(r.ring))]
	if !e.busy.CompareAndSwap(false, true) {
		return nil
	}
	e.call = call
	return e
}

// encodeEntry writes the frame of a call into an entry; false when the arguments
// exceed the frame limit.
func encodeEntry[Q, A any](r *NativeRecorder, e *entry, k *adapter[Q, A], q Q) bool {
	rec := &e.record
	rec.Kind, rec.Result, rec.Output = k.Kind, 0, rec.Output[:0]
	c := abi.Call{ID: e.call, Now: r.now(), Seed: mix(e.call)}
	if !perRequest[k.Kind] {
		c.Room = abi.MaxState // for modules that are tried on the record
	}
	rec.Frame = rec.Frame[:cap(rec.Frame)]
	size, err := k.EncodeCall(rec.Frame, c, q)
	if err == abi.ErrShort {
		rec.Frame = make([]byte, size)
		size, err = k.EncodeCall(rec.Frame, c, q)
	}
	if err != nil {
		rec.Frame, e.call = rec.Frame[:0], 0
		return false
	}
	rec.Frame = rec.Frame[:size]
	return true
}

// end moves the output from the frame into the record, and frees the entry.
func (e *entry) end(result uint64) {
	rec := &e.record
	if e.call != 0 {
		rec.Result = result
		at, size := binary.LittleEndian.Uint32(rec.Frame[56:]), binary.LittleEndian.Uint32(rec.Frame[60:])
		out := rec.Frame[at : at+size]
		rec.Output = append(rec.Output, out...)
		clear(out)
	}
	e.busy.Store(false)
}

// trim drops the oldest records of kinds that decide for many requests beyond the limit
// of bytes, but never the last one. Entries that are busy stay until the next time.
func (r *NativeRecorder) trim() {
	r.trims.Lock()
	defer r.trims.Unlock()
	size, newest := 0, r.calls.Load()
	for i := range min(uint64(len(r.ring)), newest) {
		e := &r.ring[(newest-i)%uint64(len(r.ring))]
		if !e.busy.CompareAndSwap(false, true) {
			continue
		}
		if rec := &e.record; e.call != 0 && !perRequest[rec.Kind] {
			if size += held(rec); size > r.keep && i > 0 {
				*rec, e.call = host.Record{}, 0
			}
		}
		e.busy.Store(false)
	}
}

// Records returns the records that were not overwritten yet, oldest first, except those
// that are being written. The caller may keep them.
func (r *NativeRecorder) Records() []host.Record {
	type numbered struct {
		call uint64
		host.Record
	}
	var all []numbered
	for i := range r.ring {
		e := &r.ring[i]
		if !e.busy.CompareAndSwap(false, true) {
			continue
		}
		if e.call != 0 {
			rec := e.record
			rec.Frame, rec.Output = slices.Clone(rec.Frame), slices.Clone(rec.Output)
			all = append(all, numbered{e.call, rec})
		}
		e.busy.Store(false)
	}
	slices.SortFunc(all, func(a, b numbered) int { return cmp.Compare(a.call, b.call) })
	records := make([]host.Record, len(all))
	for i := range all {
		records[i] = all[i].Record
	}
	return records
}

// Select implements policies.Selector.
func (r *NativeRecorder) Select(bids []policies.Bid) int {
	winner := r.native.Selector.Select(bids)
	if e := r.begin(); e != nil {
		record(r, e, &selectAdapter, bids, winner)
	}
	return winner
}

// Quote implements policies.Quoter.
func (r *NativeRecorder) Quote(pos policies.Occupancy, h policies.Migration) (policies.Bid, bool) {
	bid, ok := r.native.Quoter.Quote(pos, h)
	if e := r.begin(); e != nil {
		record(r, e, &quoteAdapter, abi.QuoteArgs{Occupancy: pos, Migration: h}, abi.QuoteAnswer{Bid: bid, OK: ok})
	}
	return bid, ok
}

// Excess implements policies.Detector.
func (r *NativeRecorder) Excess(own, mean policies.Tokens) policies.Tokens {
	excess := r.native.Detector.Excess(own, mean)
	if e := r.begin(); e != nil {
		record(r, e, &outlierAdapter, abi.Loads{Own: own, Mean: mean}, excess)
	}
	return excess
}

// Place implements policies.Placer.
func (r *NativeRecorder) Place(a policies.Arrival) policies.ReplicaID {
	peer := r.native.Placer.Place(a)
	if e := r.begin(); e != nil {
		record(r, e, &placeAdapter, a, peer)
	}
	return peer
}

// Refine implements policies.Refiner.
func (r *NativeRecorder) Refine(b policies.BoundaryView) policies.Tokens {
	boundary := r.native.Refiner.Refine(b)
	if e := r.begin(); e != nil {
		record(r, e, &refineAdapter, b, boundary)
	}
	return boundary
}

// RefineFor is Refine: native policies keep no state.
func (r *NativeRecorder) RefineFor(_ *Memory, b policies.BoundaryView) policies.Tokens {
	return r.Refine(b)
}

// Partition implements policies.Partitioner. Invalid workloads are not recorded: no
// module gets them.
func (r *NativeRecorder) Partition(w policies.Workload) (policies.Partition, error) {
	p, err := r.native.Partitioner.Partition(w)
	if e := r.begin(); e != nil {
		record(r, e, &partitionAdapter, w, abi.PartitionAnswer{Partition: p, Err: err})
	}
	return p, err
}

// PartitionFor is Partition: native policies keep no state.
func (r *NativeRecorder) PartitionFor(_ *Memory, w policies.Workload) (policies.Partition, error) {
	return r.Partition(w)
}

// Guard implements Guard.
func (r *NativeRecorder) Guard(ch abi.Change) (abi.Denial, bool) {
	denial, denied := r.native.Guard.Guard(ch)
	if e := r.begin(); e != nil {
		record(r, e, &guardAdapter, ch, abi.GuardAnswer{Denial: denial, Denied: denied})
	}
	return denial, denied
}

// GuardFor is Guard: native policies keep no state.
func (r *NativeRecorder) GuardFor(_ *Memory, ch abi.Change) (abi.Denial, bool) { return r.Guard(ch) }
