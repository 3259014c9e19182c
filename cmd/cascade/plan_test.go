package main

import (
	"encoding/json"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/stageplan"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestPrefillByThePolicy checks that prefill replicas are priced beside the stages that the policy makes: no
// prefill replicas cost what the plan costs, and have its stages.
func TestPrefillByThePolicy(t *testing.T) {
	counts := map[string]int{}
	for _, policy := range []string{"default", "least-cost"} {
		var got stageplan.Result
		out := runCommand(t, "plan", "--mix", "mixed", "--rate", "20", "--replicas", "8", "--profile", "rtxpro6000-llama-3.1-8b", "--pooling", "0.3", "--policy", policy, "--json")
		testkit.NoError(t, json.Unmarshal([]byte(out), &got))
		counts[policy] = len(got.Stages)
		if none := got.Prefill.Options[0]; none.Stages != len(got.Stages) || none.Decode != got.Cost {
			t.Errorf("%s: without prefill replicas %d stages that cost %v, and the plan has %d that cost %v", policy, none.Stages, none.Decode, len(got.Stages), got.Cost)
		}
	}
	if counts["default"] >= counts["least-cost"] {
		t.Errorf("%v stages: the policies do not differ, and the test shows nothing", counts)
	}
}
