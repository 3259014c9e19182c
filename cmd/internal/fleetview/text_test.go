package fleetview

import (
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// TestDescribeChange checks that a change of plan whose stages are not known has no colon at its end.
func TestDescribeChange(t *testing.T) {
	high := policies.Tokens(100)
	for want, c := range map[string]control.Change{
		"replica b is drained": {Reason: "replica b is drained"},
		"better, predicted gain 25 %: 0–100 on 1, 100–∞ on 0": {Reason: "better", Gain: 0.25, Stages: []control.DecidedStage{{High: &high, Replicas: []control.DecidedReplica{{}}}, {Low: 100}}},
	} {
		if got := DescribeChange(c); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestDescribeEngine checks what the status says of the prompts that an engine has cached.
func TestDescribeEngine(t *testing.T) {
	for want, known := range map[string]loadreport.KnownPrefixes{
		"": {}, "no block known to be cached": {Source: "none"},
		"1 block known to be cached, by its KV events":      {Source: "events", Blocks: 1},
		"20 blocks known to be cached, by what it was sent": {Source: "own", Blocks: 20},
	} {
		if got := describeEngine(control.Replica{KnownPrefixes: known}); got != want {
			t.Errorf("%+v: %q, want %q", known, got, want)
		}
	}
}

// TestDescribeScaling checks the sentence about autoscaling in every state.
func TestDescribeScaling(t *testing.T) {
	for want, s := range map[string]control.Scaling{
		"Autoscaling: 1 replica wanted, 1 present; the demand is not known yet, so the number stays.":                                                                                     {Desired: 1, Present: 1, Reason: "unknown"},
		"Autoscaling: 4 replicas wanted, 4 present; no number of replicas keeps the limits (planner.iteration), so the number stays.":                                                     {Desired: 4, Present: 4, Reason: "infeasible"},
		"Autoscaling: 5 replicas wanted, 4 present; the demand needs 5, because of the limit of KV memory: 3.2 busy at 75 % at most.":                                                     {Desired: 5, Present: 4, Reason: "needed", Needed: 5, Limit: "KV memory", Work: 3.2, Utilisation: 0.75, Growth: 1, Stages: []control.StageScaling{{Name: "s0", Replicas: 5}}},
		"Autoscaling: 5 replicas wanted, 5 present; the demand needs 3, because of their time: 2.0 busy at 75 % at most; it falls in 1m30s if this lasts; as the stages are: s0 2, s1 2.": {Desired: 5, Present: 5, Reason: "holding", Needed: 3, Limit: "work", Work: 2, Utilisation: 0.75, Growth: 0.8, FallsSeconds: 90, Stages: []control.StageScaling{{Name: "s0", Replicas: 2}, {Name: "s1", Replicas: 2}}},
		"Autoscaling: 9 replicas wanted, 4 present; the demand needs 9, because of room for bursts: 6.1 busy at 75 % at most, 60 % more than is served.":                                  {Desired: 9, Present: 4, Reason: "needed", Needed: 9, Limit: "bursts", Work: 6.1, Utilisation: 0.75, Growth: 1.6},
		"Autoscaling: 2 replicas wanted, 1 present; the demand needs 2, because of what their links carry: 0.1 busy at 75 % at most.":                                                     {Desired: 2, Present: 1, Reason: "needed", Needed: 2, Limit: "links", Work: 0.1, Utilisation: 0.75},
	} {
		if got := describeScaling(s); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

// TestReadyLine checks that prefill replicas do not count: they take no requests from proxies.
func TestReadyLine(t *testing.T) {
	st := control.Status{Verdict: control.Well, Models: []control.Model{{
		Stages:     []control.Stage{{Replicas: []control.Replica{{Health: "healthy"}, {Health: "draining"}}}},
		Unassigned: []control.Replica{{Health: "healthy", Role: "prefill"}},
	}}}
	if got, want := readyLine(st), "OK: 1 of 2 replicas take requests"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
