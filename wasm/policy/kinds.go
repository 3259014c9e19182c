package policy

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// adapter describes one policy kind, whose calls have arguments Q and an answer A. It
// is all that a Policy, a NativeRecorder and Native.Answer know of the kind.
type adapter[Q, A any] struct {
	kind abi.Kind
	// has reports whether there is a native policy of the kind.
	has func(*Native) bool
	// native calls the native policy, and module an instance of a module.
	native func(*Native, Q) A
	module func(*host.Instance, abi.Call, Q) (A, error)
	// encode writes a call into a frame, and decode reads it.
	encode func(frame []byte, c abi.Call, q Q) (int, error)
	decode func(frame []byte) (Q, abi.Status)
	// result writes the answer into the frame of the call and returns the result. It
	// returns an error for an answer that is an error of the caller.
	result func(frame []byte, q Q, a A) (uint64, error)
}

// The arguments and answers of kinds that have several.
type (
	bidAnswer struct {
		bid  policies.Bid
		bids bool
	}
	loads           struct{ own, mean policies.Tokens }
	partitionAnswer struct {
		partition policies.Partition
		err       error
	}
	guardAnswer struct {
		denial abi.Denial
		denied bool
	}
)

// The adapters of the kinds.
var (
	quoteAdapter = adapter[abi.Ask, bidAnswer]{
		kind: abi.Quote,
		has:  func(n *Native) bool { return n.Quoter != nil },
		native: func(n *Native, q abi.Ask) bidAnswer {
			bid, bids := n.Quoter.Quote(q.Position, q.Handover)
			return bidAnswer{bid, bids}
		},
		module: func(i *host.Instance, c abi.Call, q abi.Ask) (bidAnswer, error) {
			bid, bids, err := i.Quote(c, q)
			return bidAnswer{bid, bids}, err
		},
		encode: abi.EncodeQuoteCall,
		decode: abi.DecodeQuoteCall,
		result: func(frame []byte, _ abi.Ask, a bidAnswer) (uint64, error) {
			return abi.EncodeQuoteResult(frame, a.bid, a.bids), nil
		},
	}
	selectAdapter = adapter[[]policies.Bid, int]{
		kind:   abi.Select,
		has:    func(n *Native) bool { return n.Selector != nil },
		native: func(n *Native, bids []policies.Bid) int { return n.Selector.Select(bids) },
		module: (*host.Instance).Select,
		encode: abi.EncodeSelectCall,
		decode: func(frame []byte) ([]policies.Bid, abi.Status) { return abi.DecodeSelectCall(frame, nil) },
		result: func(_ []byte, _ []policies.Bid, winner int) (uint64, error) {
			return abi.EncodeSelectResult(winner), nil
		},
	}
	outlierAdapter = adapter[loads, policies.Tokens]{
		kind:   abi.Outlier,
		has:    func(n *Native) bool { return n.Detector != nil },
		native: func(n *Native, q loads) policies.Tokens { return n.Detector.Excess(q.own, q.mean) },
		module: func(i *host.Instance, c abi.Call, q loads) (policies.Tokens, error) {
			return i.Excess(c, q.own, q.mean)
		},
		encode: func(frame []byte, c abi.Call, q loads) (int, error) {
			return abi.EncodeOutlierCall(frame, c, q.own, q.mean)
		},
		decode: func(frame []byte) (loads, abi.Status) {
			own, mean, s := abi.DecodeOutlierCall(frame)
			return loads{own, mean}, s
		},
		result: func(frame []byte, _ loads, excess policies.Tokens) (uint64, error) {
			return abi.EncodeOutlierResult(frame, excess), nil
		},
	}
	placeAdapter = adapter[policies.Arrival, policies.ReplicaID]{
		kind:   abi.Place,
		has:    func(n *Native) bool { return n.Placer != nil },
		native: func(n *Native, a policies.Arrival) policies.ReplicaID { return n.Placer.Place(a) },
		module: (*host.Instance).Place,
		encode: abi.EncodePlaceCall,
		decode: func(frame []byte) (policies.Arrival, abi.Status) { return abi.DecodePlaceCall(frame, nil) },
		result: func(_ []byte, a policies.Arrival, peer policies.ReplicaID) (uint64, error) {
			return abi.EncodePlaceResult(a, peer), nil
		},
	}
	refineAdapter = adapter[policies.BoundaryView, policies.Tokens]{
		kind:   abi.Refine,
		has:    func(n *Native) bool { return n.Refiner != nil },
		native: func(n *Native, b policies.BoundaryView) policies.Tokens { return n.Refiner.Refine(b) },
		module: (*host.Instance).Refine,
		encode: abi.EncodeRefineCall,
		decode: func(frame []byte) (policies.BoundaryView, abi.Status) {
			b, _, s := abi.DecodeRefineCall(frame, nil)
			return b, s
		},
		result: func(frame []byte, _ policies.BoundaryView, boundary policies.Tokens) (uint64, error) {
			return abi.EncodeRefineResult(frame, boundary), nil
		},
	}
	partitionAdapter = adapter[policies.Workload, partitionAnswer]{
		kind: abi.Partition,
		has:  func(n *Native) bool { return n.Partitioner != nil },
		native: func(n *Native, w policies.Workload) partitionAnswer {
			p, err := n.Partitioner.Partition(w)
			return partitionAnswer{p, err}
		},
		module: func(i *host.Instance, c abi.Call, w policies.Workload) (partitionAnswer, error) {
			p, err := i.Partition(c, w)
			if err == policies.ErrInfeasible { // an answer, not a fault
				return partitionAnswer{p, err}, nil
			}
			return partitionAnswer{p, nil}, err
		},
		encode: abi.EncodePartitionCall,
		decode: func(frame []byte) (w policies.Workload, s abi.Status) {
			s = abi.DecodePartitionCall(frame, &w)
			return w, s
		},
		result: func(frame []byte, _ policies.Workload, a partitionAnswer) (uint64, error) {
			if a.err != nil && a.err != policies.ErrInfeasible {
				return 0, a.err
			}
			return abi.EncodePartitionResult(frame, a.partition, a.err == nil), nil
		},
	}
	guardAdapter = adapter[abi.Change, guardAnswer]{
		kind: abi.Guard,
		has:  func(n *Native) bool { return n.Guard != nil },
		native: func(n *Native, ch abi.Change) guardAnswer {
			d, denied := n.Guard.Guard(ch)
			return guardAnswer{d, denied}
		},
		module: func(i *host.Instance, c abi.Call, ch abi.Change) (guardAnswer, error) {
			d, denied, err := i.Guard(c, ch)
			return guardAnswer{d, denied}, err
		},
		encode: abi.EncodeGuardCall,
		decode: abi.DecodeGuardCall,
		result: func(frame []byte, _ abi.Change, a guardAnswer) (uint64, error) {
			return abi.EncodeGuardResult(frame, a.denial, a.denied), nil
		},
	}
)

// kinds is the table of the kinds that decide. Configure has no entry.
var kinds = [abi.NumKinds]interface {
	decidedBy(*Native) bool
	answer(n *Native, frame []byte) (uint64, error)
}{
	abi.Partition: &partitionAdapter, abi.Refine: &refineAdapter, abi.Quote: &quoteAdapter, abi.Select: &selectAdapter,
	abi.Outlier: &outlierAdapter, abi.Place: &placeAdapter, abi.Guard: &guardAdapter,
}

// perRequest holds for each kind whether it decides for one request.
var perRequest = func() (all [abi.NumKinds]bool) {
	for k := range all {
		all[k] = lifecycle.Kind(abi.Kind(k).String()).PerRequest()
	}
	return all
}()

// decidedBy reports whether there is a native policy of the kind.
func (k *adapter[Q, A]) decidedBy(n *Native) bool { return k.has(n) }

// answer answers a frame with the native policy, and leaves the output in it.
func (k *adapter[Q, A]) answer(n *Native, frame []byte) (uint64, error) {
	q, s := k.decode(frame)
	if s != abi.OK {
		return abi.Result(s, 0), nil
	}
	return k.result(frame, q, k.native(n, q))
}

// encodeFrame encodes a failed call once more, for its record: the guest may have
// changed the first frame.
func encodeFrame[Q, A any](k *adapter[Q, A], c abi.Call, q Q) []byte {
	n, err := k.encode(nil, c, q)
	if err != abi.ErrShort {
		return nil
	}
	b := make([]byte, n)
	k.encode(b, c, q)
	return b
}

// record answers a call with the native policy, and records it if its turn has come.
func record[Q, A any](r *NativeRecorder, k *adapter[Q, A], q Q) A {
	a := k.native(&r.native, q)
	e := r.begin()
	if e == nil {
		return a
	}
	result := uint64(0)
	if encodeEntry(r, e, k, q) {
		var err error
		if result, err = k.result(e.record.Frame, q, a); err != nil {
			e.call = 0 // modules do not get such a call
		}
	}
	e.end(result)
	if !perRequest[k.kind] {
		r.trim()
	}
	return a
}
