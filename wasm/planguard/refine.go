package planguard

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// DefaultWorse is the default of Refiner.Worse.
const DefaultWorse = 0.05

// Refiner returns the proposals of an untrusted refiner that pass its checks. It is as
// safe for concurrent use as its parts.
type Refiner struct {
	Proposer policies.Refiner
	// Worse is the share by which the Quality of the two stages may be worse with the
	// proposal than with the current boundary. 0 means DefaultWorse, and below 0 none.
	Worse float64
	// Refused is called with the reason for each proposal that was not used. It must
	// not block. It may be nil.
	Refused func(error)
}

var _ policies.Refiner = Refiner{}

// Refine returns the proposal, or the current boundary when the proposal is refused.
func (r Refiner) Refine(b policies.BoundaryView) policies.Tokens {
	lent := b
	lent.Local, lent.Next = slices.Clone(b.Local), slices.Clone(b.Next)
	t := r.Proposer.Refine(lent)
	if err := r.holds(b, t); err != nil {
		if r.Refused != nil {
			r.Refused(fmt.Errorf("boundary kept: %w", err))
		}
		return b.Boundary
	}
	return t
}

func (r Refiner) holds(b policies.BoundaryView, t policies.Tokens) error {
	if t <= b.Low || t >= b.High {
		return fmt.Errorf("proposal %v is not between %v and %v", t, b.Low, b.High)
	}
	if t == b.Boundary {
		return nil
	}
	worse := cmp.Or(r.Worse, DefaultWorse)
	now, then := Quality(b, b.Boundary), Quality(b, t)
	// The comparison is negated so that a NaN is refused.
	if !(then <= now+now*max(worse, 0)) {
		return fmt.Errorf("proposal %v makes %.4g of %.4g request-seconds, at most %.4g may be", t, then, now, now+now*max(worse, 0))
	}
	return nil
}

// Quality returns the quality of service of the requests around a boundary at t, in
// request-seconds (lower is better): the paper's QoE, with the requests below t divided
// evenly among the replicas of the own stage, and the others among those of the next
// stage. Each request of this replica counts once for each replica of its stage.
func Quality(b policies.BoundaryView, t policies.Tokens) float64 {
	var below, above policies.Batch
	put := func(s policies.Sequence, n int) {
		one := policies.Batch{}.Add(s.Input, s.Length)
		f := float64(n)
		one = policies.Batch{N: f * one.N, SumI: f * one.SumI, SumI2: f * one.SumI2, SumL: f * one.SumL}
		if s.Length < t {
			below = below.Plus(one)
		} else {
			above = above.Plus(one)
		}
	}
	own, next := max(b.Peers, 1), max(b.Successors, 1)
	for _, s := range b.Local {
		put(s, own)
	}
	for _, s := range b.Next {
		put(s, 1)
	}
	return float64(float64(own)*b.QoE.OfBatch(below.Divide(own))) + float64(float64(next)*b.QoE.OfBatch(above.Divide(next)))
}
