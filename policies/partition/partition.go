// Package partition divides a fleet into length stages: where to cut the
// lengths, and how many replicas each range gets.
//
// Every algorithm here works on one generic stage cost, fixed + num/(k−u) for
// k ≥ kmin replicas (see stage), which is convex and falling in k. A Model
// fills that cost in, from flows or from a snapshot; the algorithms do not
// know which. Exact is the default. Recursion and TwoPhase are the paper's
// (section "Length-Aware Stage Partition"), kept to compare with.
//
// The package does not decide whether a proposal is worth adopting; that is
// policies/adoption. It keeps one invariant: a proposal never contains a stage
// that its model calls infeasible, and it uses exactly the workload's
// replicas.
package partition

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
)

// ByName returns the partitioner that a config file calls name: "exact",
// "recursion" and "two-phase" price flows by token rate, "paper" is the
// two-phase heuristic on the snapshot QoE, as the paper has it. Each also
// prices given divisions by its model, as policies/adoption needs.
func ByName(name string) (policies.Partitioner, bool) {
	switch name {
	case "exact":
		return Exact{}, true
	case "recursion":
		return Recursion{}, true
	case "two-phase":
		return TwoPhase{}, true
	case "paper":
		return TwoPhase{Objective: Snapshot}, true
	}
	return nil, false
}

var (
	_ policies.Partitioner = Exact{}
	_ policies.Partitioner = Recursion{}
	_ policies.Partitioner = TwoPhase{}
)

// Price predicts what a given division costs under the workload. The cuts may
// lie anywhere, as those of a refined plan do; each is priced at its nearest
// bucket edge. The counts need not add up to w.Replicas: what a plan has is
// what it is priced with.
//
// The error is a *policies.Violation for an invalid workload or a division
// that is none (cuts not growing, a stage without replicas), and
// policies.ErrInfeasible when a stage breaks a limit. In that last case Cost
// is +Inf and Iterations still holds every stage's prediction, +Inf for a
// stage that its work overfills. OneStage and Exact are as in a proposal;
// Exact is always false.
func (m Objective) Price(w policies.Workload, cuts []policies.Tokens, counts []int) (policies.Partition, error) {
	p, err := newPricing(m, w)
	if err != nil {
		return policies.Partition{}, err
	}
	if err := validDivision(cuts, counts); err != nil {
		return policies.Partition{}, err
	}
	nodes := make([]int, 0, len(counts)+1)
	nodes = append(nodes, 0)
	for _, cut := range cuts {
		// The first bucket is never left empty, or the cut would move to 0.
		nodes = append(nodes, min(max(nearest(w.Flow.Edges, cut), 1), p.buckets()))
	}
	nodes = append(nodes, p.buckets())
	out := p.predict(nodes, counts)
	out.Cuts = append([]policies.Tokens(nil), cuts...)
	if math.IsInf(out.Cost, 1) {
		return out, policies.ErrInfeasible
	}
	return out, nil
}

// Price is x.Model's.
func (x Exact) Price(w policies.Workload, cuts []policies.Tokens, counts []int) (policies.Partition, error) {
	return x.Objective.Price(w, cuts, counts)
}

// Price is r.Model's.
func (r Recursion) Price(w policies.Workload, cuts []policies.Tokens, counts []int) (policies.Partition, error) {
	return r.Objective.Price(w, cuts, counts)
}

// Price is x.Model's.
func (x TwoPhase) Price(w policies.Workload, cuts []policies.Tokens, counts []int) (policies.Partition, error) {
	return x.Objective.Price(w, cuts, counts)
}

// validDivision checks that cuts and counts describe stages at all.
func validDivision(cuts []policies.Tokens, counts []int) error {
	if len(counts) != len(cuts)+1 {
		return &policies.Violation{Subject: "division", Invariant: "there must be one count more than cuts"}
	}
	low := policies.Tokens(0)
	for _, cut := range cuts {
		if cut <= low || cut == policies.Unbounded {
			return &policies.Violation{Subject: "division, cut " + cut.String(), Invariant: "cuts must grow strictly between 0 and ∞"}
		}
		low = cut
	}
	for _, k := range counts {
		if k < 1 {
			return &policies.Violation{Subject: "division", Invariant: "every stage needs at least one replica"}
		}
	}
	return nil
}

// nearest returns the index of the edge closest to t.
func nearest(edges []policies.Tokens, t policies.Tokens) int {
	b := policies.BucketOf(edges, t)
	if b+1 < len(edges) && edges[b+1]-t < t-edges[b] {
		return b + 1
	}
	return b
}
