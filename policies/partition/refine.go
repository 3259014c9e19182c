package partition

import (
	"cmp"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// A refiner proposes boundaries between two stages from the lengths that one
// replica and its successors serve now (paper, section "Adaptive Range Refinement").
//
// It moves a boundary, never a replica: if the mix shifts so far that a stage needs
// more replicas, only a new plan helps (policies/adoption), and with re-planning on
// the refiner adds nothing. A proposal is one replica's view; the boundary that the
// stage uses is agreed and versioned elsewhere.
//
// Invariant: a proposal lies strictly between the starts of the two neighbouring
// stages, so it never makes a stage's range empty.

// Defaults of both refiners. A period of 1 to 5 s fits DefaultSmoothing.
const (
	DefaultSmoothing = 300 // per mille
	DefaultFreeze    = 5   // requests, from the paper
)

// Damping keeps a boundary from following every request.
type Damping struct {
	// Smoothing is how far the boundary moves towards the best split, in per mille: the
	// weight of the new value in an exponential moving average. Fractions of a token are
	// dropped, so the boundary stops up to 1000/Smoothing tokens short of it. 0 means
	// DefaultSmoothing; 1000 means no smoothing.
	Smoothing int
	// Freeze is how many requests there must be, the replica's own plus those of an average
	// successor, for the boundary to move. 0 means DefaultFreeze.
	Freeze int
}

// PaperRefiner splits the replica's own requests and those of an average successor at the
// length where the QoE of both parts is best, exactly as in the paper. That includes
// splits between requests of equal length, which no boundary can make: the boundary is
// then that length. The zero value has the defaults.
type PaperRefiner struct{ Damping }

// WeightedRefiner splits the requests of both stages: each own request counts as often as the
// stage has replicas, the successors' requests count once, and each side is served by
// its own number of replicas. It splits only where a boundary can: between different
// lengths. Paper and WeightedRefiner agree on the best split at the optimum; before that, Paper
// moves too far if the stages differ in size.
type WeightedRefiner struct{ Damping }

var (
	_ policies.Refiner = PaperRefiner{}
	_ policies.Refiner = WeightedRefiner{}
)

// Refine implements policies.Refiner.
func (p PaperRefiner) Refine(b policies.BoundaryView) policies.Tokens {
	average := samplePart(b.Next, b.Successors)
	set := make([]item, 0, len(b.Local)+len(average))
	for _, s := range b.Local {
		set = append(set, weighItem(s, 1))
	}
	for _, s := range average {
		set = append(set, weighItem(s, 1))
	}
	return p.moveBoundary(b, len(set), func() policies.Tokens { return bestSplit(b.QoE, set, everySplit, 1, 1) })
}

// Refine implements policies.Refiner.
func (p WeightedRefiner) Refine(b policies.BoundaryView) policies.Tokens {
	set := make([]item, 0, len(b.Local)+len(b.Next))
	for _, s := range b.Local {
		set = append(set, weighItem(s, max(b.Peers, 1)))
	}
	for _, s := range b.Next {
		set = append(set, weighItem(s, 1))
	}
	// The sums describe whole stages; whether they are significant depends on the requests
	// that a pair of replicas has really seen.
	seen := len(b.Local) + len(b.Next)/max(b.Successors, 1)
	return p.moveBoundary(b, seen, func() policies.Tokens {
		return bestSplit(b.QoE, set, possibleSplit, max(b.Peers, 1), max(b.Successors, 1))
	})
}

// moveBoundary moves from the boundary in force towards the best split, if enough requests
// were seen.
func (d Damping) moveBoundary(b policies.BoundaryView, seen int, best func() policies.Tokens) policies.Tokens {
	if seen < max(1, cmp.Or(d.Freeze, DefaultFreeze)) {
		return b.Boundary
	}
	way := best() - b.Boundary
	smoothing := policies.Tokens(min(cmp.Or(max(d.Smoothing, 0), DefaultSmoothing), 1000))
	to := b.Boundary + way/1000*smoothing + way%1000*smoothing/1000
	return min(max(to, b.Low+1), b.High-1)
}

// samplePart returns one of n even parts of a set by the paper's approximation: sorted
// by length, every n-th element from the n/2-th on.
func samplePart(set []policies.Sequence, n int) []policies.Sequence {
	n = max(n, 1)
	sorted := slices.Clone(set)
	slices.SortFunc(sorted, func(a, b policies.Sequence) int {
		return cmp.Or(cmp.Compare(a.Length, b.Length), cmp.Compare(a.Input, b.Input))
	})
	part := sorted[:0]
	for i := n / 2; i < len(sorted); i += n {
		part = append(part, sorted[i])
	}
	return part
}

// item is a sequence of a set and its contribution to a batch.
type item struct {
	length policies.Tokens
	batch  policies.Batch
}

// weighItem returns an item that counts as n sequences.
func weighItem(s policies.Sequence, n int) item {
	one := policies.Batch{}.Add(s.Input, s.Length)
	f := float64(n)
	return item{s.Length, policies.Batch{N: f, SumI: f * one.SumI, SumI2: f * one.SumI2, SumL: f * one.SumL}}
}

// everySplit and possibleSplit say whether a sorted set may be split between two of its
// elements.
func everySplit(item, item) bool   { return true }
func possibleSplit(a, b item) bool { return a.length != b.length }

// bestSplit returns the length that splits a set, which is not empty, into two parts
// which, divided evenly among left and right replicas, have the best QoE together; the
// shortest such length among equals. It sorts the set and then visits each element once.
//
// The sums are whole numbers, exact in a float64 up to 2^53, so a part is the whole
// minus the rest without rounding.
func bestSplit(m policies.QoE, set []item, may func(a, b item) bool, left, right int) policies.Tokens {
	slices.SortFunc(set, func(a, b item) int {
		return cmp.Or(cmp.Compare(a.length, b.length), cmp.Compare(a.batch.SumI, b.batch.SumI))
	})
	var whole, below policies.Batch
	for _, s := range set {
		whole = whole.Plus(s.batch)
	}
	at, best := set[0].length, 0.0
	for i, s := range set {
		if i == 0 || may(set[i-1], s) {
			above := policies.Batch{N: whole.N - below.N, SumI: whole.SumI - below.SumI, SumI2: whole.SumI2 - below.SumI2, SumL: whole.SumL - below.SumL}
			q := quality(m, below, left) + quality(m, above, right)
			if i == 0 || q < best {
				at, best = s.length, q
			}
		}
		below = below.Plus(s.batch)
	}
	return at
}

// quality is the QoE of a set divided evenly among k replicas (paper, eq. 1 and
// the planner's recursion): k·Q^(set/k) = n·D0 + w/k.
func quality(m policies.QoE, b policies.Batch, k int) float64 {
	return float64(k) * m.OfBatch(b.Divide(k))
}
