// Package refine proposes where the boundary between two stages should lie,
// from the lengths that one replica and its successors serve now (paper,
// section "Adaptive Range Refinement").
//
// It moves a boundary, never a replica: when the mix shifts so far that a
// stage needs more replicas, only a new plan helps (policies/adoption), and with
// re-planning on the refiner adds nothing. A proposal is one replica's view;
// the stage's one boundary is agreed and versioned elsewhere.
//
// The invariant: a proposal lies strictly between the starts of its two
// neighbours, so that it never makes a stage's range empty.
package refine

import (
	"cmp"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// Defaults of both policies. A period of 1 to 5 s fits DefaultSmoothing.
const (
	DefaultSmoothing = 300 // per mille
	DefaultFreeze    = 5   // requests, from the paper
)

// Damping is what keeps a boundary from following every request.
type Damping struct {
	// Smoothing is how far the boundary goes towards the best split, in per
	// mille: the weight of the new value in an exponential moving average.
	// Fractions of a token are cut, so that the boundary stops up to
	// 1000/Smoothing tokens short of it. 0 means DefaultSmoothing; 1000 is
	// none.
	Smoothing int
	// Freeze is how many requests there must be, own and average successor's
	// together, for the boundary to move at all. 0 means DefaultFreeze.
	Freeze int
}

// Paper splits the own requests and those of an average successor where the
// QoE of both parts is best. It is the paper's, to the letter; the zero value
// has the defaults.
type Paper struct{ Damping }

// Weighted splits what both stages hold: each own request stands for as many as
// the stage has replicas, the successors' stand for themselves, and each side
// is served by its own number of replicas. The best split of Paper and of
// Weighted agree where nothing is to be gained; on the way there Paper goes
// too far when the stages differ in size.
type Weighted struct{ Damping }

var (
	_ policies.Refiner = Paper{}
	_ policies.Refiner = Weighted{}
)

// Refine implements policies.Refiner.
func (p Paper) Refine(b policies.BoundaryView) policies.Tokens {
	average := samplePart(b.Next, b.Successors)
	set := make([]item, 0, len(b.Local)+len(average))
	for _, s := range b.Local {
		set = append(set, weigh(s, 1))
	}
	for _, s := range average {
		set = append(set, weigh(s, 1))
	}
	return p.moveBoundary(b, set, len(set), 1, 1)
}

// Refine implements policies.Refiner.
func (p Weighted) Refine(b policies.BoundaryView) policies.Tokens {
	set := make([]item, 0, len(b.Local)+len(b.Next))
	for _, s := range b.Local {
		set = append(set, weigh(s, max(b.Peers, 1)))
	}
	for _, s := range b.Next {
		set = append(set, weigh(s, 1))
	}
	// The sums stand for whole stages; the count of requests that were really
	// seen by a pair of replicas decides whether they say anything.
	seen := len(b.Local) + len(b.Next)/max(b.Successors, 1)
	return p.moveBoundary(b, set, seen, max(b.Peers, 1), max(b.Successors, 1))
}

// moveBoundary goes from the boundary in force towards the best split of the set.
func (d Damping) moveBoundary(b policies.BoundaryView, set []item, seen, left, right int) policies.Tokens {
	freeze, smoothing := d.Freeze, policies.Tokens(d.Smoothing)
	if freeze == 0 {
		freeze = DefaultFreeze
	}
	if smoothing <= 0 {
		smoothing = DefaultSmoothing
	}
	if seen < freeze || len(set) == 0 {
		return b.Boundary
	}
	way := bestSplit(b.Cost, set, left, right) - b.Boundary
	smoothing = min(smoothing, 1000)
	to := b.Boundary + way/1000*smoothing + way%1000*smoothing/1000
	return min(max(to, b.Low+1), b.High-1)
}

// samplePart returns one of n even parts of a set by the paper's approximation:
// sorted by length, every n-th element from the n/2-th on.
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

// item is a sequence of a set, with what it adds to a batch.
type item struct {
	length policies.Tokens
	batch  policies.Batch
}

// weigh makes an item that counts as n sequences.
func weigh(s policies.Sequence, n int) item {
	one := policies.Batch{}.Add(s.Input, s.Length)
	f := float64(n)
	return item{s.Length, policies.Batch{N: f, SumI: f * one.SumI, SumI2: f * one.SumI2, SumL: f * one.SumL}}
}

// bestSplit returns the length at which the two parts of a set, divided evenly
// among left and right replicas, have the best QoE together; the shortest such
// length among equals. It sorts the set, then looks at each element once.
//
// The sums are whole numbers, exact in a float64 up to 2^53, so that a part is
// the whole less the rest without rounding.
func bestSplit(c policies.Cost, set []item, left, right int) policies.Tokens {
	slices.SortFunc(set, func(a, b item) int { return cmp.Compare(a.length, b.length) })
	var whole, below policies.Batch
	for _, s := range set {
		whole = whole.Plus(s.batch)
	}
	at, best := set[0].length, 0.0
	for i, s := range set {
		// Equal lengths cannot be told apart by a boundary.
		if i == 0 || s.length != set[i-1].length {
			above := policies.Batch{N: whole.N - below.N, SumI: whole.SumI - below.SumI, SumI2: whole.SumI2 - below.SumI2, SumL: whole.SumL - below.SumL}
			q := quality(c, below, left) + quality(c, above, right)
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
func quality(c policies.Cost, b policies.Batch, k int) float64 {
	return float64(k) * c.BatchQoE(b.Divide(k))
}
