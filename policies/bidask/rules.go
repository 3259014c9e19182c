package bidask

import (
	"cmp"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// The defaults of Backlog.
const (
	// DefaultQuantum is smaller than any difference in start that matters.
	DefaultQuantum = 5 * policies.Millisecond
	// DefaultThroughput is used while no rate has been measured, in tokens per second: an
	// 8 B model's KV over 100 Gbit/s.
	DefaultThroughput policies.Tokens = 100_000
)

// Backlog is the paper's quote. The load is all KV that the replica holds or has
// promised, including what it has won and not received; a transfer can start when
// that backlog has arrived at the measured rate.
//
// Starts are rounded down to whole quanta. Otherwise a remainder of microseconds
// outweighs any load in Paper, and nearly idle replicas never win. The zero value
// has the defaults.
type Backlog struct {
	Quantum    policies.Micros // 0 means DefaultQuantum
	Throughput policies.Tokens // per second, while none is measured; 0 means DefaultThroughput
}

// Quote implements policies.Quoter.
func (b Backlog) Quote(p policies.Occupancy, _ policies.Migration) (policies.Bid, bool) {
	// Not cmp.Or: in a Wasm guest it costs an eighth of the call.
	rate, quantum := p.Throughput, b.Quantum
	if rate <= 0 {
		rate = b.Throughput
	}
	if rate <= 0 {
		rate = DefaultThroughput
	}
	if quantum <= 0 {
		quantum = DefaultQuantum
	}
	backlog := min(p.Incoming, policies.Unbounded/policies.Tokens(policies.Second))
	start := policies.Micros(backlog * policies.Tokens(policies.Second) / rate)
	return policies.Bid{Load: p.Load(), Start: start - start%quantum}, true
}

// LeastLoad takes the bid with the least load; among equals the earliest start, then
// the first to arrive.
type LeastLoad struct{}

// Select implements policies.Selector.
func (LeastLoad) Select(bids []policies.Bid) int {
	best := -1
	for i, b := range bids {
		if best < 0 || b.Load < bids[best].Load || b.Load == bids[best].Load && b.Start < bids[best].Start {
			best = i
		}
	}
	return best
}

// Paper is the paper's rule: drop the half of the bids with the higher load, keep the
// three earliest starts of the rest, take the one that arrived first. Of an odd
// number the middle bid is kept. The paper leaves ties open: here equal loads are in
// order of arrival, and equal starts in order of load, then arrival; otherwise load
// would not matter among idle receivers.
type Paper struct {
	Keep int // how many earliest starts; 0 means 3
}

// Select implements policies.Selector.
func (p Paper) Select(bids []policies.Bid) int {
	if len(bids) == 0 {
		return -1
	}
	keep := cmp.Or(max(p.Keep, 0), 3)
	// On the stack for any usual number of bids: in a Wasm guest one garbage collection
	// may exceed the time limit of a call.
	order := make([]int, 0, 64)
	for i := range bids {
		order = append(order, i)
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Or(cmp.Compare(bids[i].Load, bids[j].Load), cmp.Compare(i, j)) })
	order = order[:(len(order)+1)/2]
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(bids[i].Start, bids[j].Start) })
	return slices.Min(order[:min(keep, len(order))])
}

var (
	_ policies.Quoter   = Backlog{}
	_ policies.Selector = LeastLoad{}
	_ policies.Selector = Paper{}
)
