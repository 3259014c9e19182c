package policy

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// adapter connects the calls of one kind with its native policy. It is all that a Policy,
// a NativeRecorder and Native.Answer know of the kind.
type adapter[Q, A any] struct {
	*abi.Codec[Q, A]
	// has reports whether there is a native policy of the kind, and native calls it.
	has    func(*Native) bool
	native func(*Native, Q) A
}

// The adapters of the kinds.
var (
	quoteAdapter = adapter[abi.QuoteArgs, abi.QuoteAnswer]{
		&abi.QuoteCodec,
		func(n *Native) bool { return n.Quoter != nil },
		func(n *Native, q abi.QuoteArgs) (a abi.QuoteAnswer) {
			a.Bid, a.OK = n.Quoter.Quote(q.Occupancy, q.Migration)
			return a
		},
	}
	selectAdapter = adapter[[]policies.Bid, int]{
		&abi.SelectCodec,
		func(n *Native) bool { return n.Selector != nil },
		func(n *Native, bids []policies.Bid) int { return n.Selector.Select(bids) },
	}
	outlierAdapter = adapter[abi.Loads, policies.Tokens]{
		&abi.OutlierCodec,
		func(n *Native) bool { return n.Detector != nil },
		func(n *Native, l abi.Loads) policies.Tokens { return n.Detector.Excess(l.Own, l.Mean) },
	}
	placeAdapter = adapter[policies.Arrival, policies.ReplicaID]{
		&abi.PlaceCodec,
		func(n *Native) bool { return n.Placer != nil },
		func(n *Native, a policies.Arrival) policies.ReplicaID { return n.Placer.Place(a) },
	}
	refineAdapter = adapter[policies.BoundaryView, policies.Tokens]{
		&abi.RefineCodec,
		func(n *Native) bool { return n.Refiner != nil },
		func(n *Native, b policies.BoundaryView) policies.Tokens { return n.Refiner.Refine(b) },
	}
	partitionAdapter = adapter[policies.Workload, abi.PartitionAnswer]{
		&abi.PartitionCodec,
		func(n *Native) bool { return n.Partitioner != nil },
		func(n *Native, w policies.Workload) (a abi.PartitionAnswer) {
			a.Partition, a.Err = n.Partitioner.Partition(w)
			return a
		},
	}
	guardAdapter = adapter[abi.Change, abi.GuardAnswer]{
		&abi.GuardCodec,
		func(n *Native) bool { return n.Guard != nil },
		func(n *Native, ch abi.Change) (a abi.GuardAnswer) {
			a.Denial, a.Denied = n.Guard.Guard(ch)
			return a
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
	q, s := k.DecodeCall(frame)
	if s != abi.OK {
		return abi.Result(s, 0), nil
	}
	return k.EncodeResult(frame, q, k.native(n, q))
}
