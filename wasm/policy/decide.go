package policy

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// Select implements policies.Selector.
func (p *Policy) Select(bids []policies.Bid) int { return ask(p, &selectAdapter, bids) }

// Quote implements policies.Quoter.
func (p *Policy) Quote(pos policies.Occupancy, h policies.Migration) (policies.Bid, bool) {
	a := ask(p, &quoteAdapter, abi.QuoteArgs{Occupancy: pos, Migration: h})
	return a.Bid, a.OK
}

// Excess implements policies.Detector.
func (p *Policy) Excess(own, mean policies.Tokens) policies.Tokens {
	return ask(p, &outlierAdapter, abi.Loads{Own: own, Mean: mean})
}

// Place implements policies.Placer.
func (p *Policy) Place(a policies.Arrival) policies.ReplicaID { return ask(p, &placeAdapter, a) }

// Refine implements policies.Refiner, with a Memory of the Policy's own.
func (p *Policy) Refine(b policies.BoundaryView) policies.Tokens {
	return p.RefineFor(&p.memories.refine, b)
}

// RefineFor is Refine with the state of the caller.
func (p *Policy) RefineFor(m *Memory, b policies.BoundaryView) policies.Tokens {
	return askFor(p, &refineAdapter, m, b)
}

// Partition implements policies.Partitioner, with a Memory of the Policy's own.
func (p *Policy) Partition(w policies.Workload) (policies.Partition, error) {
	return p.PartitionFor(&p.memories.partition, w)
}

// PartitionFor is Partition with the state of the caller.
func (p *Policy) PartitionFor(m *Memory, w policies.Workload) (policies.Partition, error) {
	// A module cannot report that a workload is invalid.
	if err := w.Validate(); err != nil {
		return policies.Partition{}, err
	}
	a := askFor(p, &partitionAdapter, m, w)
	return a.Partition, a.Err
}

// Guard implements Guard, with a Memory of the Policy's own.
func (p *Policy) Guard(ch abi.Change) (abi.Denial, bool) {
	return p.GuardFor(&p.memories.guard, ch)
}

// GuardFor is Guard with the state of the caller.
func (p *Policy) GuardFor(m *Memory, ch abi.Change) (abi.Denial, bool) {
	a := askFor(p, &guardAdapter, m, ch)
	return a.Denial, a.Denied
}
