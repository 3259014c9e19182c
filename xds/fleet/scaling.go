package fleet

import (
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/planner"
)

// Scaling is how many replicas a model should have, for an autoscaler to follow. Each control plane works it
// out from the reports that it gets itself, whether it leads or not: they agree but for the moment of a
// report.
type Scaling struct {
	planner.Recommendation
	// Present is how many replicas the model has, ready or not, without those that are drained, and prefill
	// replicas.
	Present int
	// Utilisation is the share of what they can serve that the demand may be.
	Utilisation float64
	// Stages is what each stage of the plan in force needs now; nil where that is not known.
	Stages []partition.Need
}

// newScalers gives each model what its recommendations depend on.
func (s *State) newScalers() error {
	cfg := s.rules.Scaling
	// The flow counters of the migrators forget faster at a higher speed, too.
	cfg.Window, cfg.Memory = s.scaledMicros(cfg.Window, planner.DefaultScaleWindow), s.scaledMicros(cfg.Memory, planner.DefaultScaleMemory)
	for _, m := range s.models {
		var err error
		if m.scaler, err = planner.NewScaler(cfg); err != nil {
			return err
		}
	}
	return nil
}

// scaledMicros returns a time, or its default, at the fleet's speed.
func (s *State) scaledMicros(t, otherwise policies.Micros) policies.Micros {
	if t == 0 {
		t = otherwise
	}
	return max(1, policies.Micros(float64(t)/s.rules.Speed))
}

// updateScaling recommends numbers of replicas, once in a planning period.
func (s *State) updateScaling(now time.Time) {
	if !s.registry.Configured() || now.Sub(s.scaledAt) < s.rules.Period {
		return
	}
	s.scaledAt = now
	for _, m := range s.models {
		sample := m.planner.ScaleSample(s.registry.View(now, m.Name))
		m.scaling = Scaling{Recommendation: m.scaler.Step(s.micros(now), sample), Present: sample.Present, Utilisation: m.scaler.Utilisation()}
		m.workload = sample.Workload
		m.scaling.Stages = m.planner.StageNeeds(sample.Workload, m.scaling.Utilisation)
	}
}
