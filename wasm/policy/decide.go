package policy

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

var (
	_ policies.Partitioner = (*Policy)(nil)
	_ policies.Refiner     = (*Policy)(nil)
	_ policies.Quoter      = (*Policy)(nil)
	_ policies.Selector    = (*Policy)(nil)
	_ policies.Detector    = (*Policy)(nil)
	_ policies.Placer      = (*Policy)(nil)
	_ Guard                = (*Policy)(nil)
)

// frame encodes a call that failed once more, for its record: what the guest
// left of the first is nobody's word.
func frame[W any](put func([]byte, abi.Call, W) (int, error), c abi.Call, words W) []byte {
	n, err := put(nil, c, words)
	if err != abi.ErrShort {
		return nil
	}
	b := make([]byte, n)
	put(b, c, words)
	return b
}

func putLoads(b []byte, c abi.Call, loads [2]policies.Tokens) (int, error) {
	return abi.EncodeOutlierCall(b, c, loads[0], loads[1])
}

// left ends a call that was answered, and keeps the state that it left.
func (p *Policy) left(s *slot, m *Memory, room int) {
	state, err := s.instance.State(room)
	m.keep(p.module, state, err)
	p.done(s)
}

// Select implements policies.Selector.
func (p *Policy) Select(bids []policies.Bid) int {
	if s := p.acquire(abi.Select); s != nil {
		c := s.call(p)
		winner, err := s.instance.Select(c, bids)
		if err == nil {
			p.done(s)
			return winner
		}
		p.failed(s, abi.Select, err, frame(abi.EncodeSelectCall, c, bids))
	}
	return p.config.Native.Selector.Select(bids)
}

// Quote implements policies.Quoter.
func (p *Policy) Quote(pos policies.Occupancy, h policies.Migration) (policies.Bid, bool) {
	if s := p.acquire(abi.Quote); s != nil {
		c, ask := s.call(p), abi.Ask{Position: pos, Handover: h}
		bid, ok, err := s.instance.Quote(c, ask)
		if err == nil {
			p.done(s)
			return bid, ok
		}
		p.failed(s, abi.Quote, err, frame(abi.EncodeQuoteCall, c, ask))
	}
	return p.config.Native.Quoter.Quote(pos, h)
}

// Excess implements policies.Detector.
func (p *Policy) Excess(own, mean policies.Tokens) policies.Tokens {
	if s := p.acquire(abi.Outlier); s != nil {
		c := s.call(p)
		excess, err := s.instance.Excess(c, own, mean)
		if err == nil {
			p.done(s)
			return excess
		}
		p.failed(s, abi.Outlier, err, frame(putLoads, c, [2]policies.Tokens{own, mean}))
	}
	return p.config.Native.Detector.Excess(own, mean)
}

// Place implements policies.Placer.
func (p *Policy) Place(a policies.Arrival) policies.ReplicaID {
	if s := p.acquire(abi.Place); s != nil {
		c := s.call(p)
		peer, err := s.instance.Place(c, a)
		if err == nil {
			p.done(s)
			return peer
		}
		p.failed(s, abi.Place, err, frame(abi.EncodePlaceCall, c, a))
	}
	return p.config.Native.Placer.Place(a)
}

// Refine implements policies.Refiner, with a Memory of the Policy's own.
func (p *Policy) Refine(b policies.BoundaryView) policies.Tokens {
	return p.RefineFor(&p.memories.refine, b)
}

// RefineFor is Refine with the state of who asks.
func (p *Policy) RefineFor(m *Memory, b policies.BoundaryView) policies.Tokens {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := p.acquire(abi.Refine); s != nil {
		c := s.call(p)
		m.recall(p.module, &c)
		at, err := s.instance.Refine(c, b)
		if err == nil {
			p.left(s, m, c.Room)
			return at
		}
		p.failed(s, abi.Refine, err, frame(abi.EncodeRefineCall, c, b))
	}
	return p.config.Native.Refiner.Refine(b)
}

// Partition implements policies.Partitioner, with a Memory of the Policy's own.
func (p *Policy) Partition(w policies.Workload) (policies.Partition, error) {
	return p.PartitionFor(&p.memories.partition, w)
}

// PartitionFor is Partition with the state of who asks.
func (p *Policy) PartitionFor(m *Memory, w policies.Workload) (policies.Partition, error) {
	// A module cannot say what is wrong with a workload.
	if err := w.Validate(); err != nil {
		return policies.Partition{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := p.acquire(abi.Partition); s != nil {
		c := s.call(p)
		m.recall(p.module, &c)
		part, err := s.instance.Partition(c, w)
		if err == nil || err == policies.ErrInfeasible {
			p.left(s, m, c.Room)
			return part, err
		}
		p.failed(s, abi.Partition, err, frame(abi.EncodePartitionCall, c, w))
	}
	return p.config.Native.Partitioner.Partition(w)
}

// Guard implements Guard, with a Memory of the Policy's own.
func (p *Policy) Guard(ch abi.Change) (abi.Denial, bool) {
	return p.GuardFor(&p.memories.guard, ch)
}

// GuardFor is Guard with the state of who asks.
func (p *Policy) GuardFor(m *Memory, ch abi.Change) (abi.Denial, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := p.acquire(abi.Guard); s != nil {
		c := s.call(p)
		m.recall(p.module, &c)
		d, denied, err := s.instance.Guard(c, ch)
		if err == nil {
			p.left(s, m, c.Room)
			return d, denied
		}
		p.failed(s, abi.Guard, err, frame(abi.EncodeGuardCall, c, ch))
	}
	return p.config.Native.Guard.Guard(ch)
}
