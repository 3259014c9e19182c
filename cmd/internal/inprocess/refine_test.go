package inprocess

import (
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// TestRefines checks that with the paper's preset the replicas of a stage propose a new end of the stage based on their
// own and the next stage's requests, and that the control plane publishes the boundary that they agree on. The boundary
// moves, no replica changes its stage, and no request fails.
func TestRefines(t *testing.T) {
	t.Parallel()
	r := newFleetHarness(t, harnessConfig{replicas: 4, edit: func(f *config.Fleet) {
		f.Preset, f.Speed, f.Migration = config.PresetPaper, 4, config.Migration{}
	}})
	load := r.newLoad(24, 300, 300, 600, 1200)
	const cut = policies.Tokens(20_000) // far too high: the second stage is idle
	// A refinement before the first status is a plan of its own, so this does not wait for a
	// status.
	r.write(policies.Plan{Model: llm, Stages: stages([]policies.Tokens{cut}, ids(0, 1), ids(2, 3))})
	s := r.waitForStatus("the cut has moved down twice", func(s control.Status) bool {
		m := s.Models[0]
		return len(m.Stages) == 2 && m.Epoch >= r.object.Epoch+2 && m.Stages[1].Low < cut
	})
	for i, st := range s.Models[0].Stages {
		if len(st.Replicas) != 2 {
			t.Errorf("stage %d has %d replicas now", i, len(st.Replicas))
		}
	}
	load.Stop()
	load.Report()
	r.tally()
	t.Logf("the cut went from %d to %d", cut, s.Models[0].Stages[1].Low)
}
