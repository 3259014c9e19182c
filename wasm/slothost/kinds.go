package slothost

import (
	"fmt"
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/planguard"
)

// This file is all that the package knows of the single kinds: the native policies, one kind
// value for each, and the policies that callers get.

// Guard judges a plan that is to replace another.
type Guard interface {
	// Guard returns a denial, and whether there is one. It is pure.
	Guard(abi.Change) (abi.Denial, bool)
}

// Native holds the policies that are compiled into the host. They decide while no module
// does, and answer the calls that a module does not answer.
type Native struct {
	Partitioner policies.Partitioner
	Refiner     policies.Refiner
	Quoter      policies.Quoter
	Selector    policies.Selector
	Detector    policies.Detector
	Placer      policies.Placer
	Guard       Guard
}

// kind is what the package knows of one kind.
type kind[Q, A any] struct {
	*abi.Codec[Q, A]
	// has reports whether there is a native policy, and native calls it.
	has    func(*Native) bool
	native func(*Native, Q) A
	// request returns the hash of the request that a call decides for, which chooses the
	// calls of a canary. Nil for kinds that decide for many requests.
	request func(Q) uint64
	// vectors returns the arguments that a module must answer before it is used: usual
	// ones and limits of the valid ranges, all of which a host may send. The answers are
	// not prescribed, because policies decide differently.
	vectors func() []Q
	// rate reports whether a candidate's answer differs from the active policy's, and
	// whether it is worse, by the host's own cost functions and not by the claims of either
	// policy. Nil for kinds whose answers cannot be rated on their own: they differ or not.
	rate func(n *Native, q Q, was, is A) (differ, worse bool)
	// deny returns the answer where a module should have answered. Nil for kinds that the
	// native policy answers then.
	deny func(why string) A
}

// kinds is the table of the kinds that decide. Configure has no entry.
var kinds = [abi.NumKinds]interface {
	decidedBy(*Native) bool
	answer(n *Native, frame []byte) (uint64, error)
	frames() [][]byte
	compare(n *Native, active, candidate *host.Record) (differ, worse bool)
}{
	abi.Partition: &partitionKind, abi.Refine: &refineKind, abi.Quote: &quoteKind, abi.Select: &selectKind,
	abi.Outlier: &outlierKind, abi.Place: &placeKind, abi.Guard: &guardKind,
}

var quoteKind = kind[abi.QuoteArgs, abi.QuoteAnswer]{
	Codec: &abi.QuoteCodec,
	has:   func(n *Native) bool { return n.Quoter != nil },
	native: func(n *Native, q abi.QuoteArgs) (a abi.QuoteAnswer) {
		a.Bid, a.OK = n.Quoter.Quote(q.Occupancy, q.Migration)
		return a
	},
	request: func(q abi.QuoteArgs) uint64 { return hashRequest(q.Migration.Request) },
	vectors: quoteVectors,
}

var selectKind = kind[[]policies.Bid, int]{
	Codec:   &abi.SelectCodec,
	has:     func(n *Native) bool { return n.Selector != nil },
	native:  func(n *Native, bids []policies.Bid) int { return n.Selector.Select(bids) },
	request: hashBids,
	vectors: selectVectors,
	// Worse is a winner whose load and start are both no better than those of the active
	// policy's and one of them worse, and no winner where the active policy has one.
	rate: func(_ *Native, bids []policies.Bid, a, c int) (differ, worse bool) {
		switch {
		case a == c:
			return false, false
		case a < 0 || c < 0:
			return true, c < 0
		}
		was, is := bids[a], bids[c]
		return true, is.Load >= was.Load && is.Start >= was.Start && (is.Load > was.Load || is.Start > was.Start)
	},
}

var outlierKind = kind[abi.Loads, policies.Tokens]{
	Codec:   &abi.OutlierCodec,
	has:     func(n *Native) bool { return n.Detector != nil },
	native:  func(n *Native, l abi.Loads) policies.Tokens { return n.Detector.Excess(l.Own, l.Mean) },
	request: func(l abi.Loads) uint64 { return hashWord(hashWord(hashStart, uint64(l.Own)), uint64(l.Mean)) },
	vectors: func() []abi.Loads {
		return []abi.Loads{{}, {Own: 150_000, Mean: 100_000}, {Own: 1 << 40, Mean: 1}, {Own: 1, Mean: 1 << 40}}
	},
}

var placeKind = kind[policies.Arrival, policies.ReplicaID]{
	Codec:   &abi.PlaceCodec,
	has:     func(n *Native) bool { return n.Placer != nil },
	native:  func(n *Native, a policies.Arrival) policies.ReplicaID { return n.Placer.Place(a) },
	request: func(a policies.Arrival) uint64 { return hashRequest(a.Request.ID) },
	vectors: placeVectors,
}

var refineKind = kind[policies.BoundaryView, policies.Tokens]{
	Codec:   &abi.RefineCodec,
	has:     func(n *Native) bool { return n.Refiner != nil },
	native:  func(n *Native, b policies.BoundaryView) policies.Tokens { return n.Refiner.Refine(b) },
	vectors: refineVectors,
	// Worse is a boundary that serves no better than the current one and, by more than the
	// margin of the refiner's gate, worse than the active policy's: one that stays where
	// the active policy gains. A policy may decide freely within that margin, and a refiner
	// that takes smaller steps makes the rest of the way in later periods.
	rate: func(_ *Native, b policies.BoundaryView, at, to policies.Tokens) (differ, worse bool) {
		// Staying is no gain. The comparison is negated so that a NaN counts as worse.
		q := planguard.Quality(b, to)
		gains := q < planguard.Quality(b, b.Boundary)
		return at != to, at != to && !gains && !(q <= planguard.Quality(b, at)*(1+planguard.DefaultWorse))
	},
}

var partitionKind = kind[policies.Workload, abi.PartitionAnswer]{
	Codec: &abi.PartitionCodec,
	has:   func(n *Native) bool { return n.Partitioner != nil },
	native: func(n *Native, w policies.Workload) (a abi.PartitionAnswer) {
		a.Partition, a.Err = n.Partitioner.Partition(w)
		return a
	},
	vectors: workloads,
	// Worse is a partition that costs more than the active policy's by more than the slack
	// of the planner's gate, and none where the active policy has one.
	rate: func(n *Native, w policies.Workload, a, c abi.PartitionAnswer) (differ, worse bool) {
		was, is := a.Partition, c.Partition
		switch {
		case a.Err != nil || c.Err != nil:
			// Either both found none, or one did; it is worse only if the candidate found none.
			return a.Err != c.Err, a.Err == nil
		case slices.Equal(was.Cuts, is.Cuts) && slices.Equal(was.Counts, is.Counts):
			return false, false
		}
		return true, n.cost(w, is) > n.cost(w, was)*(1+planguard.DefaultSlack)
	},
}

var guardKind = kind[abi.Change, abi.GuardAnswer]{
	Codec: &abi.GuardCodec,
	has:   func(n *Native) bool { return n.Guard != nil },
	native: func(n *Native, ch abi.Change) (a abi.GuardAnswer) {
		a.Denial, a.Denied = n.Guard.Guard(ch)
		return a
	},
	vectors: guardVectors,
	// A failure must not let a plan pass that the guard would have denied.
	deny: func(why string) abi.GuardAnswer {
		return abi.GuardAnswer{Denial: abi.Denial{Stage: -1, Detail: why}, Denied: true}
	},
}

// cost returns the cost that the native model predicts for a partition: infinite if it
// breaks a limit, always 0 if no native policy can price partitions.
func (n *Native) cost(w policies.Workload, p policies.Partition) float64 {
	price, ok := n.Partitioner.(planguard.Native)
	if !ok {
		return 0
	}
	priced, err := price.Price(w, p.Cuts, p.Counts)
	if err != nil {
		return math.Inf(1)
	}
	return priced.Cost
}

func hashBids(bids []policies.Bid) uint64 {
	h := uint64(hashStart)
	for i := range bids {
		h = hashWord(hashWord(h, uint64(bids[i].Load)), uint64(bids[i].Start))
	}
	return h
}

// The policies that callers get.
type (
	quoter struct {
		*caller[abi.QuoteArgs, abi.QuoteAnswer]
	}
	selector struct{ *caller[[]policies.Bid, int] }
	detector struct {
		*caller[abi.Loads, policies.Tokens]
	}
	placer struct {
		*caller[policies.Arrival, policies.ReplicaID]
	}
	refiner struct {
		*caller[policies.BoundaryView, policies.Tokens]
	}
	partitioner struct {
		*caller[policies.Workload, abi.PartitionAnswer]
	}
	guard struct {
		*caller[abi.Change, abi.GuardAnswer]
	}
)

func (c quoter) Quote(p policies.Occupancy, h policies.Migration) (policies.Bid, bool) {
	a := c.ask(abi.QuoteArgs{Occupancy: p, Migration: h})
	return a.Bid, a.OK
}

func (c selector) Select(bids []policies.Bid) int { return c.ask(bids) }

func (c detector) Excess(own, mean policies.Tokens) policies.Tokens {
	return c.ask(abi.Loads{Own: own, Mean: mean})
}

func (c placer) Place(a policies.Arrival) policies.ReplicaID { return c.ask(a) }

func (c refiner) Refine(b policies.BoundaryView) policies.Tokens { return c.ask(b) }

func (c partitioner) Partition(w policies.Workload) (policies.Partition, error) {
	// A module cannot report that a workload is invalid.
	if err := w.Validate(); err != nil {
		return policies.Partition{}, err
	}
	a := c.ask(w)
	return a.Partition, a.Err
}

func (c guard) Guard(ch abi.Change) (abi.Denial, bool) {
	a := c.ask(ch)
	return a.Denial, a.Denied
}

// Quoter returns the policy of the slot bid-quote, or the native policy when the host
// has no such slot. So do the other methods.
func (s *Slots) Quoter() policies.Quoter {
	if k := s.slots[abi.Quote]; k != nil {
		return quoter{newCaller(k, &quoteKind, "", nil)}
	}
	return s.config.Native.Quoter
}

// Selector returns the policy of the slot bid-select.
func (s *Slots) Selector() policies.Selector {
	if k := s.slots[abi.Select]; k != nil {
		return selector{newCaller(k, &selectKind, "", nil)}
	}
	return s.config.Native.Selector
}

// Detector returns the policy of the slot outlier.
func (s *Slots) Detector() policies.Detector {
	if k := s.slots[abi.Outlier]; k != nil {
		return detector{newCaller(k, &outlierKind, "", nil)}
	}
	return s.config.Native.Detector
}

// Placer returns the policy of the slot place.
func (s *Slots) Placer() policies.Placer {
	if k := s.slots[abi.Place]; k != nil {
		return placer{newCaller(k, &placeKind, "", nil)}
	}
	return s.config.Native.Placer
}

// Refiner returns the policy of the slot refine for a scope: the replica's node. A
// module keeps state between calls for each returned Refiner, which serves one
// replica.
func (s *Slots) Refiner(scope string) policies.Refiner {
	if k := s.slots[abi.Refine]; k != nil {
		return refiner{newCaller(k, &refineKind, scope, new(memory))}
	}
	return s.config.Native.Refiner
}

// Partitioner returns the policy of the slot partition for a scope: the model's name.
// A module keeps state between calls for each scope.
func (s *Slots) Partitioner(scope string) policies.Partitioner {
	if k := s.slots[abi.Partition]; k != nil {
		return partitioner{newCaller(k, &partitionKind, scope, k.memoryOf(scope))}
	}
	return s.config.Native.Partitioner
}

// Guard returns the policy of the slot guard for a scope: the model's name. While the
// fleet has a stable guard that does not decide here, because it is being built or
// has failed, every plan is denied.
func (s *Slots) Guard(scope string) Guard {
	if k := s.slots[abi.Guard]; k != nil {
		return guard{newCaller(k, &guardKind, scope, k.memoryOf(scope))}
	}
	return s.config.Native.Guard
}

// perRequest reports whether a kind decides for one request.
func perRequest(k abi.Kind) bool { return slotKind(k).PerRequest() }

// slotKind returns the slot of an ABI kind.
func slotKind(k abi.Kind) lifecycle.Kind { return lifecycle.Kind(k.String()) }

// Decides reports whether there is a native policy of a kind.
func (n Native) Decides(k abi.Kind) bool {
	return k < abi.NumKinds && kinds[k] != nil && kinds[k].decidedBy(&n)
}

// Decide returns the answer of the native policy of a codec's kind, which must exist.
func Decide[Q, A any](n *Native, k *abi.Codec[Q, A], q Q) A {
	return kinds[k.Kind].(*kind[Q, A]).native(n, q)
}

// Answer answers a frame with the native policy of its kind, as a module with that policy
// would, and records the call in r, whose slices it reuses. It consumes no fuel. The
// error is a *host.Fault with the cause that is also in r.Cause: Unknown when there is no
// such policy.
func (n Native) Answer(frame []byte, r *host.Record) error {
	k := abi.KindOf(frame)
	out := slices.Clone(frame)
	var result uint64
	var err error
	decided := n.Decides(k)
	if decided {
		result, err = kinds[k].answer(&n, out)
	}
	*r = host.Record{Kind: k, Frame: append(r.Frame[:0], frame...), Result: result, Output: r.Output[:0]}
	if status, _ := abi.Unpack(result); err == nil && status > abi.None {
		err = status
	}
	switch {
	case !decided:
		r.Cause, err = host.Unknown, fmt.Errorf("no native policy decides %s", k)
	case err != nil:
		r.Cause = host.Refused
	default:
		r.Output = append(r.Output, abi.OutputArea(out)...)
		return nil
	}
	return &host.Fault{Kind: k, Cause: r.Cause, Err: err}
}

func (k *kind[Q, A]) decidedBy(n *Native) bool { return k.has(n) }

// answer answers a frame with the native policy, and leaves the output in it.
func (k *kind[Q, A]) answer(n *Native, frame []byte) (uint64, error) {
	q, s := k.DecodeCall(frame)
	if s != abi.OK {
		return abi.Result(s, 0), nil
	}
	return k.EncodeResult(frame, q, k.native(n, q))
}

// compare reports whether a candidate decided otherwise than the active policy, and
// whether it decided worse. Both records are of the same frame and have answers.
func (k *kind[Q, A]) compare(n *Native, active, candidate *host.Record) (differ, worse bool) {
	if calllog.SameAnswer(active, candidate) {
		return false, false
	}
	q, was, err := host.Decode(active, k.Codec)
	_, is, err2 := host.Decode(candidate, k.Codec)
	if err != nil || err2 != nil || k.rate == nil {
		return true, false
	}
	return k.rate(n, q, was, is)
}

// frames returns the kind's vectors as frames.
func (k *kind[Q, A]) frames() (all [][]byte) {
	for n, q := range k.vectors() {
		c := abi.Call{ID: uint64(n + 1), Now: policies.Second * policies.Micros(n), Seed: uint64(n) * 0x9e3779b97f4a7c15}
		frame, err := k.Frame(c, q)
		if err != nil {
			panic("internal error: a vector does not fit: " + err.Error())
		}
		all = append(all, frame)
	}
	return all
}
