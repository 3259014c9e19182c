package planguard

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// DefaultSlack is the default of Planner.Slack.
const DefaultSlack = 0.25

// Native is a trusted partitioner that can also price a partition that another one
// computed. Those of policies/partition are.
type Native interface {
	policies.Partitioner
	// Price predicts the cost of a partition under a workload. The error is
	// policies.ErrInfeasible when a stage breaks a limit.
	Price(w policies.Workload, cuts []policies.Tokens, counts []int) (policies.Partition, error)
}

// Planner returns the proposals of an untrusted partitioner that pass its checks. It is a
// Native itself, with the prices of Native, so that plan adoption uses only trusted
// prices. It is as safe for concurrent use as its parts.
type Planner struct {
	Proposer policies.Partitioner
	Native   Native
	// Slack is the share by which a proposal may cost more than Native's own partition,
	// at Native's prices. A policy may know more than Native's model, but may deviate
	// from it only so far. 0 means DefaultSlack, and below 0 none.
	Slack float64
	// Refused is called with the reason for each proposal that was not used. It must
	// not block. It may be nil.
	Refused func(error)
}

var _ Native = Planner{}

// Partition returns the proposal with Native's predictions, or Native's own partition
// when the proposal is refused. The error is Native's.
func (p Planner) Partition(w policies.Workload) (policies.Partition, error) {
	own, err := p.Native.Partition(w)
	if err != nil && !errors.Is(err, policies.ErrInfeasible) {
		return own, err // the workload is invalid
	}
	got, reason := p.propose(w, own, err == nil)
	if reason == nil {
		return got, nil
	}
	if p.Refused != nil {
		p.Refused(fmt.Errorf("partition kept: %w", reason))
	}
	return own, err
}

// propose gets a proposal, checks it and prices it. The error is why it is refused.
func (p Planner) propose(w policies.Workload, own policies.Partition, feasible bool) (policies.Partition, error) {
	got, err := p.Proposer.Partition(clone(w))
	if err != nil {
		return got, fmt.Errorf("nothing proposed: %w", err)
	}
	if err := Divides(w, got); err != nil {
		return got, err
	}
	cuts, counts := slices.Clone(got.Cuts), slices.Clone(got.Counts)
	priced, err := p.Native.Price(w, cuts, counts)
	if err != nil {
		return got, fmt.Errorf("the proposal cannot be priced: %w", err)
	}
	if math.IsNaN(priced.Cost) || math.IsInf(priced.Cost, 0) {
		return got, fmt.Errorf("the proposal costs %v", priced.Cost)
	}
	slack := cmp.Or(p.Slack, DefaultSlack)
	if limit := own.Cost + math.Abs(own.Cost)*max(slack, 0); feasible && priced.Cost > limit {
		return got, fmt.Errorf("the proposal costs %.4g, the own partition %.4g: at most %.4g may be", priced.Cost, own.Cost, limit)
	}
	priced.Exact = false
	return priced, nil
}

// Price returns Native's price.
func (p Planner) Price(w policies.Workload, cuts []policies.Tokens, counts []int) (policies.Partition, error) {
	return p.Native.Price(w, cuts, counts)
}

// Divides returns why a partition is invalid for the workload. A valid one has every
// replica in one stage, no more stages than allowed, and cuts that increase strictly and
// lie between 0 and policies.Unbounded.
func Divides(w policies.Workload, p policies.Partition) error {
	limit := policies.MaxStages
	if w.Limits.Stages > 0 {
		limit = min(limit, w.Limits.Stages)
	}
	switch {
	case len(p.Counts) != len(p.Cuts)+1:
		return fmt.Errorf("%d stages with %d cuts between them", len(p.Counts), len(p.Cuts))
	case len(p.Counts) > limit:
		return fmt.Errorf("%d stages, at most %d may be", len(p.Counts), limit)
	}
	low := policies.Tokens(0)
	for i, cut := range p.Cuts {
		if cut <= low || cut == policies.Unbounded {
			return fmt.Errorf("cut %d at %v: cuts grow strictly between 0 and ∞", i, cut)
		}
		low = cut
	}
	sum := 0
	for i, k := range p.Counts {
		if k < 1 || k > w.Replicas {
			return fmt.Errorf("stage %d has %d of %d replicas", i, k, w.Replicas)
		}
		sum += k
	}
	if sum != w.Replicas {
		return fmt.Errorf("the stages have %d of %d replicas", sum, w.Replicas)
	}
	return nil
}

// clone returns a deep copy: a proposer must not change the workload with which its
// proposal is priced.
func clone(w policies.Workload) policies.Workload {
	f := &w.Flow
	for _, s := range []*[]float64{&f.Arrivals, &f.Tokens, &f.Reads, &f.Prefill, &f.Prefill2, &f.Weight, &f.Crossings} {
		*s = slices.Clone(*s)
	}
	f.Edges, w.Snapshot = slices.Clone(f.Edges), slices.Clone(w.Snapshot)
	return w
}
