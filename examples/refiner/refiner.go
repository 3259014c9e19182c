// Command refiner is a policy of one's own, in Go: where the boundary between two
// stages should lie. Natively it shows what it would do:
//
//	go run ./examples/refiner
//
// and this makes the module that a fleet can run:
//
//	cascade policy build examples/refiner
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

// even has the replicas of both stages hold equally many tokens. It knows nothing
// of what an iteration costs, which our own refiners do.
type even struct{}

var _ policies.Refiner = even{}

// Refine goes half the way to the length that divides the tokens of both stages
// evenly among their replicas. It decides in integers, so that it decides the same
// on every machine.
func (even) Refine(b policies.Border) policies.Tokens {
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
	step := (at - b.Boundary) / 2
	if max(step, -step) < b.Boundary/smallest {
		return b.Boundary
	}
	return min(max(b.Boundary+step, b.Low+1), b.High-1)
}
