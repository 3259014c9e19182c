package slothost

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/internal/loader"
	"github.com/cascadeinfer/cascade/wasm/internal/swap"
	"github.com/cascadeinfer/cascade/wasm/policy"
	"github.com/cascadeinfer/cascade/wasm/promotion"
)

// The policies that callers get: each call is between an Enter and a Leave. They
// hash a request only while a candidate decides for some.
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

// scoped is a slot as one scope sees it, with what modules keep for it.
type scoped struct {
	slot   *swap.Slot[loader.Policy]
	scope  string
	memory *policy.Memory
}

// scoped returns the slot of a scope, which has one memory however often it is
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

// Quoter answers as the slot of bid-quote does; where the host has no such slot,
// as the native policy. So do the others.
func (s *Set) Quoter() policies.Quoter {
	if k := s.slots[abi.Quote]; k != nil {
		return quoter{k.slot}
	}
	return s.config.Native.Quoter
}

// Selector answers as the slot of bid-select does.
func (s *Set) Selector() policies.Selector {
	if k := s.slots[abi.Select]; k != nil {
		return selector{k.slot}
	}
	return s.config.Native.Selector
}

// Detector answers as the slot of outlier does.
func (s *Set) Detector() policies.Detector {
	if k := s.slots[abi.Outlier]; k != nil {
		return detector{k.slot}
	}
	return s.config.Native.Detector
}

// Placer answers as the slot of place does.
func (s *Set) Placer() policies.Placer {
	if k := s.slots[abi.Place]; k != nil {
		return placer{k.slot}
	}
	return s.config.Native.Placer
}

// Refiner answers as the slot of refine does for a scope: the replica's node. What a
// module keeps between calls it keeps for each refiner that is returned, which is
// one replica's.
func (s *Set) Refiner(scope string) policies.Refiner {
	if k := s.slots[abi.Refine]; k != nil {
		return refiner{k.slot, scope, new(policy.Memory)}
	}
	return s.config.Native.Refiner
}

// Partitioner answers as the slot of partition does for a scope: the model's name.
// What a module keeps between calls it keeps for the scope.
func (s *Set) Partitioner(scope string) policies.Partitioner {
	if k := s.slots[abi.Partition]; k != nil {
		return partitioner(k.scoped(scope))
	}
	return s.config.Native.Partitioner
}

// Guard answers as the slot of guard does for a scope: the model's name. While the
// fleet has a proven guard that does not decide here, because it is being built
// or has failed, every plan is denied.
func (s *Set) Guard(scope string) policy.Guard {
	if k := s.slots[abi.Guard]; k != nil {
		return guard{k, k.scoped(scope)}
	}
	return s.config.Native.Guard
}

func (q quoter) Quote(p policies.Occupancy, h policies.Migration) (policies.Bid, bool) {
	l, whole := q.EnterActive()
	if !whole {
		l = q.Enter(promotion.Hash(h.Request))
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
		l = p.Enter(promotion.Hash(a.Request.ID))
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
	if l.Generation == promotion.Native && g.proven.Load() {
		return abi.Denial{Stage: -1, Detail: "the guard that the fleet runs does not run here: see cascade policy status; roll it back to do without"}, true
	}
	return l.Policy.GuardFor(g.memory, ch)
}

// Decisions about bids and outliers have no request's name: what they are about
// stands for it, word by word, as FNV-1a takes bytes. Share mixes the rest.
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
