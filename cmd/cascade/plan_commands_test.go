package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// TestWritePlans prints a history with a bit of everything.
func TestWritePlans(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	until := at.Add(5 * time.Minute)
	high := policies.Tokens(224)
	split := []control.Stage{
		{Name: "s0", High: &high, Replicas: []control.Replica{{ID: "r0"}}},
		{Name: "s1", Low: 224, Replicas: []control.Replica{{ID: "r1"}, {ID: "r2"}}},
	}
	p := control.PlanHistory{
		Decisions: []control.Decision{
			{Time: at, Model: "llama", Epoch: 1, Reason: "first plan"},
			{Time: at, Model: "llama", Epoch: 2, Decision: "adopted", Reason: "better plan", Gain: 0.31, Predicted: 0.012, Observed: 0.0131, By: "cp-1", Stages: split},
			{Time: at, Until: &until, Times: 30, Model: "llama", Epoch: 2, Decision: "kept", Reason: "gain too small", Gain: 0.02, By: "cp-1"},
			{Time: at, Model: "llama", Epoch: 3, Decision: "rolled back", Reason: "rolled back to the plan of epoch 1", By: "ann@desk", Stages: []control.Stage{{Replicas: []control.Replica{{ID: "r0"}, {ID: "r1"}, {ID: "r2"}}}}},
		},
		History: []control.FormerPlan{{Model: "llama", Epoch: 1, Counts: []int{3}}, {Model: "llama", Epoch: 2, Cuts: []policies.Tokens{224}, Counts: []int{1, 2}}},
		Pins:    []control.Pinned{{FormerPlan: control.FormerPlan{Model: "llama", Epoch: 1}, By: "ann@desk", At: at}},
	}
	var got strings.Builder
	if err := writePlans(&got, p); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "plans.golden")
	if *update {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("run with -update and read the diff:\n%s", got.String())
	}
}
