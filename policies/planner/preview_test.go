package planner_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/policies/policytest"
)

func previewWorkload() policies.Workload {
	w := policytest.ChatWorkload(policies.BucketEdges(131072, planner.BucketsPerOctave), 8, 0.6, 1)
	w.Snapshot = nil
	return w
}

// TestPreviewIsThePlanners checks that a preview is what the policy's own partitioner proposes,
// with and without a bound on iterations.
func TestPreviewIsThePlanners(t *testing.T) {
	w := previewWorkload()
	policy := testkit.Must(planner.PolicyNamed(""))
	for _, ratio := range []float64{0, 1.5} {
		got := testkit.Must(policy.Preview(w, ratio))
		var native adoption.Planner = partition.Exact{Slack: partition.DefaultSlack}
		if ratio > 0 {
			native = adoption.LimitIterationRatio(native, ratio)
		}
		if want := testkit.Must(native.Partition(w)); !reflect.DeepEqual(got.Proposal, want) {
			t.Errorf("ratio %v: proposes %+v, want %+v", ratio, got.Proposal, want)
		}
		if len(got.Reasons) != len(got.Proposal.Counts) {
			t.Errorf("ratio %v: %d reasons for %d stages", ratio, len(got.Reasons), len(got.Proposal.Counts))
		}
	}
	if one, free := testkit.Must(policy.Preview(w, 1)), testkit.Must(policy.Preview(w, 0)); len(free.Proposal.Counts) < 2 || free.Proposal.Cost >= one.Proposal.Cost {
		t.Errorf("the bound decides nothing: %v without it, %v with it", free.Proposal, one.Proposal)
	}
}

// TestPreviewOfOtherPolicies checks the policies that do not plan on flows.
func TestPreviewOfOtherPolicies(t *testing.T) {
	w := previewWorkload()
	robin := testkit.Must(planner.PolicyNamed(planner.PolicyRoundRobin))
	if got := testkit.Must(robin.Preview(w, 0)); len(got.Proposal.Counts) != 1 || got.Proposal.Counts[0] != w.Replicas {
		t.Errorf("round robin proposes %v, want one stage of %d", got.Proposal, w.Replicas)
	}
	paper := testkit.Must(planner.PolicyNamed(planner.PolicyPaper))
	if _, err := paper.Preview(w, 0); !errors.Is(err, planner.ErrNeedsSnapshot) {
		t.Errorf("paper: %v", err)
	}
	w.Replicas = 1
	w.Limits.Iteration = 1e-9
	if _, err := robin.Preview(w, 0); !errors.Is(err, policies.ErrInfeasible) {
		t.Errorf("an impossible bound: %v", err)
	}
}

// TestPolicyWithSlack checks that a wider slack proposes fewer stages that cost no more than it allows, and that a
// policy without a slack stays.
func TestPolicyWithSlack(t *testing.T) {
	w := previewWorkload()
	policy := testkit.Must(planner.PolicyNamed(""))
	least := testkit.Must(policy.WithSlack(0).Preview(w, 0)).Proposal
	wide := testkit.Must(policy.WithSlack(0.5).Preview(w, 0)).Proposal
	if len(wide.Counts) >= len(least.Counts) || wide.Cost < least.Cost || wide.Cost > 1.5*least.Cost {
		t.Errorf("%d stages that cost %v with half of it as slack, %d that cost %v without", len(wide.Counts), wide.Cost, len(least.Counts), least.Cost)
	}
	if paper := testkit.Must(planner.PolicyNamed(planner.PolicyPaper)); paper.WithSlack(0.5) != paper {
		t.Error("the paper's policy has got a slack")
	}
}

// TestPriceOfPlanInForce checks that the proposal, put in force, costs what was predicted.
func TestPriceOfPlanInForce(t *testing.T) {
	w := previewWorkload()
	policy := testkit.Must(planner.PolicyNamed(""))
	proposal := testkit.Must(policy.Preview(w, 0)).Proposal
	var replicas []policies.Replica
	for i := range w.Replicas {
		replicas = append(replicas, policies.Replica{ID: policies.ReplicaID(rune('a' + i)), Model: "m"})
	}
	plan := adoption.Assigner{}.Assign(policies.Plan{Model: "m"}, proposal, replicas)
	priced := testkit.Must(policy.Price(w, plan))
	if diff := priced.Cost/proposal.Cost - 1; diff > 1e-6 || diff < -1e-6 {
		t.Errorf("the plan costs %v, predicted were %v", priced.Cost, proposal.Cost)
	}
}
