package fleetview

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

func TestStageReasons(t *testing.T) {
	more, less := 0.1234, -0.004
	reasons := []*control.StageReason{
		{Requests: 0.7, Tokens: 0.2, MergedWith: "s1", CostRise: &more},
		{Requests: 0.295, Tokens: 0.6, MergedWith: "s0", CostRise: &less},
		{Requests: 0.005, Tokens: 0.2, MergedWith: "s1"},
	}
	high := []policies.Tokens{100, 1000}
	two := []control.Replica{{ID: "a"}, {ID: "b"}}
	stages := []control.Stage{{Name: "s0", High: &high[0], Replicas: two}, {Name: "s1", Low: 100, High: &high[1], Replicas: two[:1]}, {Name: "s2", Low: 1000, Replicas: two}}
	unexplained := slices.Clone(stages)
	for i := range stages {
		stages[i].Reason = reasons[i]
	}
	want := []string{
		"s0: 70 % of the requests, 20 % of the tokens; 12 % dearer if merged with s1.",
		"s1: 30 % of the requests, 60 % of the tokens; 0.4 % cheaper if merged with s0.",
		"s2: 0.5 % of the requests, 20 % of the tokens; over its limits if merged.",
	}
	if got := stageNotes(stages); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	var out bytes.Buffer
	testkit.NoError(t, PlanTable("Plan of cascade", control.Model{Epoch: 7, Reason: "better plan", Stages: stages}).Text(&out))
	for _, want := range []string{
		"Plan of cascade: epoch 7, better plan",
		"│ s0    │ 0–100     │ 12 % dearer if merged with s1   │        2 │     70 % │   20 % │",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, &out)
		}
	}
	if got := DescribeReason(&control.StageReason{Requests: 1, Tokens: 1}); got != "the only stage" {
		t.Error(got)
	}
	for _, unknown := range []string{DescribeReason(nil), PlanTable("", control.Model{Stages: unexplained}).Rows[0][2]} {
		if unknown != "not known yet" {
			t.Error(unknown)
		}
	}
	if notes := stageNotes(stages[:1]); notes != nil {
		t.Errorf("of the only stage: %q", notes)
	}
}
