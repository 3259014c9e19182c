package adoption

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
)

// rollBack is the rollback of a plan that is slower than predicted. (An operator rolls back
// by xds/internal/fleetstate; xds/internal/publish reverts a plan that proxies refuse.)
// It returns to the previous plan, scaled to the present replicas, or to one
// stage if that was the previous plan or the previous one is over its limits by now, and
// starts a hold-off. One stage is within its limits: else slowerThanPredicted, which
// compares with it, is false.
func (m *Machine) rollBack(in Input, w policies.Workload, present policies.Plan) Decision {
	back := oneStage(w.Replicas)
	if len(m.previous.Stages) > 1 {
		before := ScaleCounts(policies.Partition{Cuts: m.previous.Cuts(), Counts: countsOf(m.previous)}, w.Replicas)
		w.Limits.Pooling, w.Limits.Utilisation = 0, 0 // as for a plan in force
		if _, err := m.config.Planner.Price(w, before.Cuts, before.Counts); err == nil {
			back = before
		}
	}
	m.HoldOff(in.Now)
	return m.adopt(in, present, back, RolledBack)
}

// slowerThanPredicted evaluates the last window and reports whether the plan in force
// was slower than predicted for too many windows: some stage's iterations exceed the
// prediction, and all stages together are no better than the prediction for one stage,
// so that a rollback can help. A single stage cannot be rolled back. The first window
// of a plan is not evaluated: its stages still run requests placed under the plan
// before.
func (m *Machine) slowerThanPredicted(in Input, w policies.Workload, present policies.Plan, priced policies.Partition) bool {
	stages := len(present.Stages)
	m.calibrate(in, priced, stages)
	if stages == 1 || len(in.Iterations) != stages || len(priced.Iterations) != stages {
		return false
	}
	if m.settlingWindows > 0 {
		m.settlingWindows--
		return false
	}
	slow := false
	for s, measured := range in.Iterations {
		slow = slow || measured > priced.Iterations[s]*(1+excess)*max(1, m.bias)
	}
	if !slow || m.inFlight(in, w, present, priced) < m.inFlightUndivided(w) {
		m.slowWindows = 0
		return false
	}
	m.slowWindows++
	return m.slowWindows >= windows
}

// inFlight returns the requests in flight that follow from the measured iterations and
// the present flow (Little's law); a stage without a measurement counts with its
// prediction.
func (m *Machine) inFlight(in Input, w policies.Workload, present policies.Plan, priced policies.Partition) float64 {
	total := 0.0
	for b, rate := range w.Flow.Tokens {
		s := present.StageOf(w.Flow.Edges[b])
		t := in.Iterations[s]
		if t == 0 {
			t = priced.Iterations[s]
		}
		if rate > 0 {
			total += float64(rate * t)
		}
	}
	return total
}

// inFlightUndivided returns the predicted requests in flight with one stage.
func (m *Machine) inFlightUndivided(w policies.Workload) float64 {
	one, err := m.config.Planner.Price(w, nil, []int{w.Replicas})
	if err != nil {
		return math.Inf(1)
	}
	total := 0.0
	for _, rate := range w.Flow.Tokens {
		total += rate
	}
	return total * one.Iterations[0] * max(1, m.bias)
}

// calibrate learns from windows of a single stage by how much the engines are slower
// than the model, averaged over about four windows.
func (m *Machine) calibrate(in Input, priced policies.Partition, stages int) {
	if stages != 1 || len(in.Iterations) != 1 || len(priced.Iterations) != 1 {
		return
	}
	ratio := in.Iterations[0] / priced.Iterations[0]
	if !(ratio > 0) { // not measured, or the prediction is infinite: the stage is overloaded
		return
	}
	ratio = min(max(ratio, 1), biasMax)
	if m.bias == 0 {
		m.bias = ratio
	}
	m.bias += (ratio - m.bias) / 4
}
