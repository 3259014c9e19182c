// Command refiner is a policy of one's own, in Go: where the boundary between two
// stages should lie. Natively it shows what it would do:
//
//	go run ./examples/refiner
//
// and this makes the module that a fleet can run:
//
//	cascade policy test --build examples/refiner
package main

import (
	"cmp"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/guest/refine"
)

func init() { refine.Register(even{}) }

// The damping of even: requests without which it does nothing, and the smallest
// move, as a part of the boundary.
const (
	fewest   = 8
	smallest = 20
)

// even balances the tokens that the replicas of both stages hold, as far as that makes
// neither stage slower: two long requests can cost more to read than to hold.
type even struct{}

var _ policies.Refiner = even{}

// Refine moves the boundary half the way to the length that divides the tokens of both
// stages evenly among their replicas. While requests would wait longer there than with
// the present boundary, it halves the distance again.
func (even) Refine(b policies.BoundaryView) policies.Tokens {
	if len(b.Local)+len(b.Next) < fewest {
		return b.Boundary
	}
	// An own request stands for one on each replica of the stage; those of the
	// next stage are all there.
	type item struct{ length, tokens policies.Tokens }
	var all policies.Tokens
	set := make([]item, 0, len(b.Local)+len(b.Next))
	for _, s := range b.Local {
		set = append(set, item{s.Length, s.Length * policies.Tokens(b.Peers)})
	}
	for _, s := range b.Next {
		set = append(set, item{s.Length, s.Length})
	}
	for _, s := range set {
		all += s.tokens
	}
	slices.SortFunc(set, func(a, b item) int { return cmp.Compare(a.length, b.length) })

	at, below := b.Boundary, policies.Tokens(0)
	for _, s := range set {
		if below += s.tokens; below*policies.Tokens(b.Successors) >= (all-below)*policies.Tokens(b.Peers) {
			at = s.length
			break
		}
	}
	now := cost(b, b.Boundary)
	for step := (at - b.Boundary) / 2; max(step, -step) >= max(b.Boundary/smallest, 1); step /= 2 {
		if to := min(max(b.Boundary+step, b.Low+1), b.High-1); cost(b, to) <= now {
			return to
		}
	}
	return b.Boundary
}

// cost is how long the requests wait for a token with the boundary at a length, all
// together: those below it divided among the replicas of this stage, the others
// among those of the next one. float64(a*b) keeps a compiler from adding what it has
// not rounded, so that every machine decides the same.
func cost(b policies.BoundaryView, at policies.Tokens) float64 {
	var lower, upper policies.Batch
	put := func(list []policies.Sequence, each float64) {
		for _, s := range list {
			one := policies.Batch{}.Add(s.Input, s.Length)
			one = policies.Batch{N: each, SumI: each * one.SumI, SumI2: each * one.SumI2, SumL: each * one.SumL}
			if s.Length < at {
				lower = lower.Plus(one)
			} else {
				upper = upper.Plus(one)
			}
		}
	}
	own, next := max(b.Peers, 1), max(b.Successors, 1)
	put(b.Local, float64(own))
	put(b.Next, 1)
	return float64(float64(own)*b.QoE.OfBatch(lower.Divide(own))) + float64(float64(next)*b.QoE.OfBatch(upper.Divide(next)))
}
