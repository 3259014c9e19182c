package partition

import (
	"cmp"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// Quantity and Memory are the naïve policies that the paper compares its own with (section "Adaptive vs.
// naïve range-refinement policies"). Like Paper they split the replica's own requests and those of an
// average successor, with the same damping; they need no model of the engines.
//
// Quantity gives both stages equally many requests.
type Quantity struct{ Damping }

// Memory gives both stages equally much KV: the sums of the lengths are equal, as far as a split
// between two requests can make them.
type Memory struct{ Damping }

var (
	_ policies.Refiner = Quantity{}
	_ policies.Refiner = Memory{}
)

// Refine implements policies.Refiner.
func (p Quantity) Refine(b policies.BoundaryView) policies.Tokens {
	return p.refineBy(b, func(policies.Sequence) policies.Tokens { return 1 })
}

// Refine implements policies.Refiner.
func (p Memory) Refine(b policies.BoundaryView) policies.Tokens {
	return p.refineBy(b, func(s policies.Sequence) policies.Tokens { return s.Length })
}

// refineBy moves the boundary towards the length that halves the sum of weight.
func (d Damping) refineBy(b policies.BoundaryView, weight func(policies.Sequence) policies.Tokens) policies.Tokens {
	set := slices.Concat(b.Local, samplePart(b.Next, b.Successors))
	return d.moveBoundary(b, len(set), func() policies.Tokens { return halve(set, weight) })
}

// halve returns the length at which a set, which is not empty, splits into two parts whose weights
// differ least; the shortest such length among equals. It sorts the set.
func halve(set []policies.Sequence, weight func(policies.Sequence) policies.Tokens) policies.Tokens {
	slices.SortFunc(set, func(a, b policies.Sequence) int { return cmp.Compare(a.Length, b.Length) })
	whole := policies.Tokens(0)
	for _, s := range set {
		whole += weight(s)
	}
	at, least, below := set[0].Length, whole, policies.Tokens(0)
	for _, s := range set {
		if difference := max(whole-2*below, 2*below-whole); difference < least {
			at, least = s.Length, difference
		}
		below += weight(s)
	}
	return at
}
