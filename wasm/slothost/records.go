package slothost

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

const (
	// mostRecords and recordBytes bound the records of one policy. The second one, which
	// holds five of the largest plans, of 10,000 replicas, is for kinds that decide for
	// many requests, whose frames are large.
	mostRecords = 128
	recordBytes = 8 << 20
)

// records are the last recorded calls of a module or of the native policy. It is safe
// for concurrent use.
type records struct {
	every uint64 // one in every calls is recorded; 0 for none
	bytes int    // bound of the sum of the records; 0 for none
	clock func() policies.Micros
	made  atomic.Uint64 // calls of the native policy

	mu    sync.Mutex
	ring  []host.Record // guarded by mu; the memory of a record is used again
	added uint64        // guarded by mu
	fuel  lifecycle.Fuel
}

func newRecords(every int, perRequest bool, clock func() policies.Micros) *records {
	r := &records{every: uint64(every), bytes: recordBytes, clock: clock}
	if perRequest {
		r.bytes = 0
	}
	return r
}

// recorded reports whether the call with a number is recorded.
func (r *records) recorded(number uint64) bool { return r.every > 0 && number%r.every == 0 }

// oldest returns the record to write next. The lock is held.
func (r *records) oldest() *host.Record {
	n := int(r.added % mostRecords)
	if n == len(r.ring) {
		r.ring = append(r.ring, host.Record{})
	}
	return &r.ring[n]
}

// commit makes the oldest record, which has been written, the latest one. The oldest ones
// beyond the bound of bytes are dropped, but never the latest. The lock is held.
func (r *records) commit() {
	size, latest := 0, int(r.added%mostRecords)
	r.added++
	for n := 0; r.bytes > 0 && n < len(r.ring); n++ {
		rec := &r.ring[(latest-n+len(r.ring))%len(r.ring)]
		if size += cap(rec.Frame) + cap(rec.Output); size > r.bytes && n > 0 {
			*rec = host.Record{}
		}
	}
}

// add adds a record, and leaves the memory of the oldest one in it.
func (r *records) add(rec *host.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fuel.Last, r.fuel.Max = rec.Fuel, max(r.fuel.Max, rec.Fuel)
	old := r.oldest()
	*old, *rec = *rec, *old
	r.commit()
}

// recordNative records a call of the native policy, if it is its turn. The record has no
// module and no fuel.
func recordNative[Q, A any](r *records, k *kind[Q, A], q Q, a A) {
	if r.every == 0 {
		return
	}
	number := r.made.Add(1)
	if !r.recorded(number) {
		return
	}
	c := abi.Call{ID: number, Now: r.clock(), Seed: mix(number)}
	if k.request == nil {
		c.Room = abi.MaxState // for modules that are tried on the record
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.oldest()
	frame := rec.Frame[:cap(rec.Frame)]
	size, err := k.EncodeCall(frame, c, q)
	if err == abi.ErrShort {
		frame = make([]byte, size)
		size, err = k.EncodeCall(frame, c, q)
	}
	*rec = host.Record{Kind: k.Kind, Output: rec.Output[:0]}
	if err != nil {
		return // it does not fit into a frame: modules do not get such calls, either
	}
	frame = frame[:size]
	if rec.Result, err = k.EncodeResult(frame, q, a); err != nil {
		return
	}
	out := abi.OutputArea(frame)
	rec.Output = append(rec.Output, out...)
	clear(out)
	rec.Frame = frame
	r.commit()
}

// since returns copies of the records that were added after the first n and are not
// overwritten or dropped yet, oldest first, and how many were added in all.
func (r *records) since(n uint64) (all []host.Record, added uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n = max(n, r.added-min(r.added, mostRecords)); n < r.added; n++ {
		rec := r.ring[n%mostRecords]
		if rec.Frame == nil && rec.Cause == 0 {
			continue // dropped, or never finished
		}
		rec.Frame, rec.Output = slices.Clone(rec.Frame), slices.Clone(rec.Output)
		all = append(all, rec)
	}
	return all, r.added
}
