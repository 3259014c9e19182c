package fleetview

import (
	"testing"

	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// TestCountStageHits counts requests on both sides of every boundary, by the plan that routed them.
func TestCountStageHits(t *testing.T) {
	first, second := policies.Tokens(100), policies.Tokens(1000)
	history := []control.Change{
		{Epoch: 1, Stages: []control.DecidedStage{{Name: "s0"}}},
		{Epoch: 2, Stages: []control.DecidedStage{{Name: "s0", High: &first}, {Name: "s1", Low: first, High: &second}, {Name: "s2", Low: second}}},
	}
	for _, c := range []struct {
		epoch, stage string
		prompt       int64
		want         StageHits
	}{
		{"1", "s0", 5000, StageHits{InRange: 1}},
		{"2", "s0", 99, StageHits{InRange: 1}},
		{"2", "s0", 100, StageHits{Next: 1}},
		{"2", "s1", 99, StageHits{Next: 1}},
		{"2", "s1", 999, StageHits{InRange: 1}},
		{"2", "s2", 1000, StageHits{InRange: 1}},
		{"2", "s1", 1000, StageHits{Next: 1}},
		{"2", "s0", 1000, StageHits{Other: 1}},
		{"2", "s2", 1, StageHits{Other: 1}},
		{"2", "s3", 1, StageHits{Unknown: 1}},
		{"2", "", 1, StageHits{Unknown: 1}},
		{"3", "s0", 1, StageHits{Unknown: 1}},
		{"", "", 1, StageHits{Unknown: 1}},
	} {
		got := CountStageHits([]replay.Record{
			{Epoch: c.epoch, Stage: c.stage, Prompt: c.prompt},
			{Epoch: c.epoch, Stage: c.stage, Prompt: c.prompt, Error: replay.Cut}, // counts nowhere
		}, history)
		if got != c.want {
			t.Errorf("epoch %q, stage %q, %d tokens: %+v, want %+v", c.epoch, c.stage, c.prompt, got, c.want)
		}
	}
}
