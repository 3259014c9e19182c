package slothost

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/internal/loader"
	"github.com/cascadeinfer/cascade/wasm/internal/swap"
	"github.com/cascadeinfer/cascade/wasm/policy"
	"github.com/cascadeinfer/cascade/wasm/promotion"
)

// The policies that callers get. Each call is between an Enter and a Leave. They hash
// a request only while a candidate decides for some requests.
type (
	quoter      struct{ *swap.Slot[loader.Policy] }
	selector    struct{ *swap.Slot[loader.Policy] }
	detector    struct{ *swap.Slot[loader.Policy] }
	placer      struct{ *swap.Slot[loader.Policy] }
	refiner     scoped
	partitioner scoped
	guard       struct {
		*kindSlot
		scoped
	}
)

// scoped is a slot for one scope, with the state that modules keep for it.
type scoped struct {
	slot   *swap.Slot[loader.Policy]
	scope  string
	memory *policy.Memory
}

// scoped returns the slot for a scope. A scope has one memory, however often it is
// asked for.
func (k *kindSlot) scoped(scope string) scoped {
	k.scopesMu.Lock()
	defer k.scopesMu.Unlock()
	m := k.scopes[scope]
	if m == nil {
		m = new(policy.Memory)
		k.scopes[scope] = m
	}
	return scoped{k.slot, scope, m}
}

// Quoter returns the policy of the slot bid-quote, or the native policy when the host
// has no such slot. So do the other methods.
func (s *Slots) Quoter() policies.Quoter {
	if k := s.slots[abi.Quote]; k != nil {
		return quoter{k.slot}
	}
	return s.config.Native.Quoter
}

// Selector returns the policy of the slot bid-select.
func (s *Slots) Selector() policies.Selector {
	if k := s.slots[abi.Select]; k != nil {
		return selector{k.slot}
	}
	return s.config.Native.Selector
}

// Detector returns the policy of the slot outlier.
func (s *Slots) Detector() policies.Detector {
	if k := s.slots[abi.Outlier]; k != nil {
		return detector{k.slot}
	}
	return s.config.Native.Detector
}

// Placer returns the policy of the slot place.
func (s *Slots) Placer() policies.Placer {
	if k := s.slots[abi.Place]; k != nil {
		return placer{k.slot}
	}
	return s.config.Native.Placer
}

// Refiner returns the policy of the slot refine for a scope: the replica's node. A
// module keeps state between calls for each returned Refiner, which serves one
// replica.
func (s *Slots) Refiner(scope string) policies.Refiner {
	if k := s.slots[abi.Refine]; k != nil {
		return refiner{k.slot, scope, new(policy.Memory)}
	}
	return s.config.Native.Refiner
}

// Partitioner returns the policy of the slot partition for a scope: the model's name.
// A module keeps state between calls for each scope.
func (s *Slots) Partitioner(scope string) policies.Partitioner {
	if k := s.slots[abi.Partition]; k != nil {
		return partitioner(k.scoped(scope))
	}
	return s.config.Native.Partitioner
}

// Guard returns the policy of the slot guard for a scope: the model's name. While the
// fleet has a stable guard that does not decide here, because it is being built or
// has failed, every plan is denied.
func (s *Slots) Guard(scope string) policy.Guard {
	if k := s.slots[abi.Guard]; k != nil {
		return guard{k, k.scoped(scope)}
	}
	return s.config.Native.Guard
}

func (q quoter) Quote(p policies.Occupancy, h policies.Migration) (policies.Bid, bool) {
	l, whole := q.EnterActive()
	if !whole {
		l = q.Enter(promotion.HashRequest(h.Request))
	}
	bid, bids := l.Policy.Quote(p, h)
	l.Leave()
	return bid, bids
}

func (s selector) Select(bids []policies.Bid) int {
	l, whole := s.EnterActive()
	if !whole {
		l = s.Enter(hashBids(bids))
	}
	winner := l.Policy.Select(bids)
	l.Leave()
	return winner
}

func (d detector) Excess(own, mean policies.Tokens) policies.Tokens {
	l, whole := d.EnterActive()
	if !whole {
		l = d.Enter(hashWord(hashWord(hashStart, uint64(own)), uint64(mean)))
	}
	excess := l.Policy.Excess(own, mean)
	l.Leave()
	return excess
}

func (p placer) Place(a policies.Arrival) policies.ReplicaID {
	l, whole := p.EnterActive()
	if !whole {
		l = p.Enter(promotion.HashRequest(a.Request.ID))
	}
	peer := l.Policy.Place(a)
	l.Leave()
	return peer
}

func (r refiner) Refine(b policies.BoundaryView) policies.Tokens {
	l := r.slot.EnterScope(r.scope)
	defer l.Leave()
	return l.Policy.RefineFor(r.memory, b)
}

func (p partitioner) Partition(w policies.Workload) (policies.Partition, error) {
	l := p.slot.EnterScope(p.scope)
	defer l.Leave()
	return l.Policy.PartitionFor(p.memory, w)
}

func (g guard) Guard(ch abi.Change) (abi.Denial, bool) {
	l := g.kindSlot.slot.EnterScope(g.scope)
	defer l.Leave()
	if l.Generation == lifecycle.Native && g.stable.Load() {
		return abi.Denial{Stage: -1, Detail: "the stable guard of the fleet does not run here: see cascade policy status, or roll the guard back"}, true
	}
	return l.Policy.GuardFor(g.memory, ch)
}

// Decisions about bids and outliers have no request name: their arguments are hashed
// in its place, a 64-bit word at a time, as FNV-1a hashes bytes. promotion.Share
// spreads the result.
const (
	hashStart = 14695981039346656037
	hashPrime = 1099511628211
)

func hashWord(h, word uint64) uint64 { return (h ^ word) * hashPrime }

func hashBids(bids []policies.Bid) uint64 {
	h := uint64(hashStart)
	for i := range bids {
		h = hashWord(hashWord(h, uint64(bids[i].Load)), uint64(bids[i].Start))
	}
	return h
}
