package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/xds/control"
)

func TestStageReasons(t *testing.T) {
	more, less := 0.1234, -0.004
	reasons := []*control.StageReason{
		{Requests: 0.7, Tokens: 0.2, MergedWith: "s1", CostRise: &more},
		{Requests: 0.295, Tokens: 0.6, MergedWith: "s0", CostRise: &less},
		{Requests: 0.005, Tokens: 0.2, MergedWith: "s1"},
	}
	stages := threeStages(1).Stages
	for i := range stages {
		stages[i].Reason = reasons[i]
	}
	want := []string{
		"s0: 70 % of the requests, 20 % of the tokens; merged with s1, the plan would cost 12 % more.",
		"s1: 30 % of the requests, 60 % of the tokens; merged with s0, the plan would cost 0.4 % less.",
		"s2: 0.5 % of the requests, 20 % of the tokens; merged with a neighbour, it would be over its limits.",
	}
	if got := stageNotes(stages); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	var out bytes.Buffer
	if err := planTable("Plan of cascade", control.Model{Epoch: 7, Reason: "better plan", Stages: stages}).Text(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Plan of cascade: epoch 7, better plan",
		"│ s0    │ [0, 100)    │ merged with s1, the plan would cost 12 % more        │        2 │     70 % │   20 % │",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, &out)
		}
	}
	if got := describeReason(&control.StageReason{Requests: 1, Tokens: 1}); got != "the only stage" {
		t.Error(got)
	}
	for _, unknown := range []string{describeReason(nil), planTable("", control.Model{Stages: threeStages(1).Stages}).Rows[0][2]} {
		if unknown != "not known yet" {
			t.Error(unknown)
		}
	}
	if notes := stageNotes(stages[:1]); notes != nil {
		t.Errorf("of the only stage: %q", notes)
	}
}
