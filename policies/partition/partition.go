// Package partition divides a fleet into length stages: it chooses where to cut the
// range of lengths and how many replicas each stage gets.
//
// All algorithms work on one generic stage cost, fixed + num/(k−u) for k ≥ kmin replicas
// (see stage), which is convex and decreasing in k. An Objective computes that cost from
// flows or from a snapshot; the algorithms are independent of it. Exact is the default,
// with a slack for fewer stages.
// Recursion and TwoPhase are the paper's (section "Length-Aware Stage Partition"), kept
// for comparison.
//
// The package does not decide whether a proposal is worth adopting; policies/adoption
// does. Invariant: a proposal never contains a stage that its objective calls
// infeasible, and it uses exactly the workload's replicas.
package partition

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
)

// Names lists the names that ByName knows.
func Names() []string { return []string{"default", "least-cost", "recursion", "two-phase", "paper"} }

// ByName returns the partitioner that a config file calls name: "default" is Exact with
// DefaultSlack, "least-cost" without; they, "recursion" and "two-phase" price flows by token
// rate, "paper" is the two-phase heuristic on the snapshot QoE, as in the paper. Each also
// prices given divisions by its objective, as policies/adoption needs.
func ByName(name string) (policies.Partitioner, bool) {
	switch name {
	case "default":
		return Exact{Slack: DefaultSlack}, true
	case "least-cost":
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

// Price predicts the cost of a given division under the workload. Cuts need not lie on
// bucket edges, as those of a refined plan; each is priced at its nearest edge. The
// counts need not add up to w.Replicas: they are priced as given.
//
// The error is a *policies.Violation for an invalid workload or an invalid division (cuts
// not increasing, a stage without replicas), and policies.ErrInfeasible if a stage breaks
// a limit. In the latter case Cost is +Inf, and Iterations still holds every stage's
// prediction, +Inf for an overloaded stage. OneStage is as in a proposal; Exact is always
// false.
func (m Objective) Price(w policies.Workload, cuts []policies.Tokens, counts []int) (policies.Partition, error) {
	p, err := newPricing(m, w)
	if err != nil {
		return policies.Partition{}, err
	}
	if err := validDivision(cuts, counts); err != nil {
		return policies.Partition{}, err
	}
	nodes := []int{0}
	for _, cut := range cuts {
		nodes = append(nodes, nodeOf(w.Flow.Edges, cut))
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

// validDivision checks that cuts and counts describe stages.
func validDivision(cuts []policies.Tokens, counts []int) error {
	if len(counts) != len(cuts)+1 {
		return &policies.Violation{Subject: "division", Invariant: "there must be one count more than cuts"}
	}
	low := policies.Tokens(0)
	for _, cut := range cuts {
		if cut <= low || cut == policies.Unbounded {
			return &policies.Violation{Subject: "division, cut " + cut.String(), Invariant: "cuts must increase strictly between 0 and ∞"}
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

// nodeOf returns the bucket at which a stage with this cut begins. The first bucket is kept non-empty;
// otherwise the cut would move to 0.
func nodeOf(edges []policies.Tokens, cut policies.Tokens) int {
	return min(max(nearest(edges, cut), 1), len(edges))
}

// nearest returns the index of the edge closest to t.
func nearest(edges []policies.Tokens, t policies.Tokens) int {
	b := policies.BucketOf(edges, t)
	if b+1 < len(edges) && edges[b+1]-t < t-edges[b] {
		return b + 1
	}
	return b
}
