package inprocess

import (
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// TestPaperRefines checks that with the paper's preset, the replicas of a stage propose a new end
// of the stage based on their own and the next stage's requests, and the control plane publishes
// the boundary that they agree on. The boundary moves, no replica changes its stage, and no request
// fails.
func TestPaperRefines(t *testing.T) {
	idlePlanes(t, onEnvoy, func(t *testing.T, envoy string) {
		refines(t, envoy, func(f *config.Fleet) { f.Preset, f.Speed, f.Migration = "paper", 4, config.Migration{} })
	})
}

// TestDefaultRefines does the same with the default preset, if the operator enables it.
func TestDefaultRefines(t *testing.T) {
	refines(t, "", func(f *config.Fleet) {
		f.Preset, f.Speed, f.Planner.Refine, f.Migration = "", 4, config.RefineOn, config.Migration{}
	})
}

func refines(t *testing.T, envoy string, edit func(*config.Fleet)) {
	r := newFleetHarness(t, harnessConfig{envoy: envoy, replicas: 4, edit: edit})
	load := newTraffic(r, 24, 300, 300, 600, 1200)
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
	load.stop()
	load.report()
	r.tally()
	t.Logf("the cut went from %d to %d", cut, s.Models[0].Stages[1].Low)
}
