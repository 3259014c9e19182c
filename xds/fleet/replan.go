package fleet

import (
	"math"
	"strconv"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
)

// decider is a model's adoption machine and the window of measurements that
// it judges the plan in force by.
type decider struct {
	machine *adoption.Machine // nil: one stage, always
	window  []pace            // per stage, summed over the ticks of the window
}

// newDecider returns the decider of complete rules. The machine's times are
// those of the fleet's own pace.
func newDecider(rules Rules, model string, p policy) (decider, error) {
	if p.planner == nil {
		return decider{}, nil
	}
	planner := p.planner
	if rules.Wrap != nil {
		planner = rules.Wrap(model, planner)
	}
	machine, err := adoption.New(adoption.Config{
		// The State calls once a period. The machine's own is a little shorter,
		// so that a tick that comes a moment early is not a period lost.
		Planner: planner, Period: 0.9 * rules.Period.Seconds(), Seen: rules.Seen,
		HoldOff: holdOff / rules.Speed, HoldOffMax: holdOffMax / rules.Speed,
		MoveCost: moveCost / rules.Speed, Horizon: horizon / rules.Speed,
	})
	return decider{machine: machine}, err
}

// What adoption is told beyond its own defaults, in seconds at speed 1.
const (
	holdOff    = 60
	holdOffMax = 960
	moveCost   = 5
	horizon    = 60
)

// observe takes one moment's pace of each stage into the window.
func (d *decider) observe(paces []pace) {
	if len(d.window) != len(paces) {
		d.reset(len(paces))
	}
	for i, p := range paces {
		d.window[i].running += p.running
		d.window[i].tokens += p.tokens
	}
}

// mean returns each stage's iteration time over the window, every token
// weighing the same (Little's law); 0 where nothing ran.
func (d *decider) mean() []float64 {
	out := make([]float64, len(d.window))
	for i, p := range d.window {
		if p.tokens > 0 {
			out[i] = p.running / p.tokens
		}
	}
	return out
}

func (d *decider) reset(stages int) { d.window = make([]pace, stages) }

// replan is the planning period of a model: the plan that the machine decides
// for, or the present one without those who drained. The machine sees what is
// ready and nothing else; replicas that are not keep their place beside it.
func (s *State) replan(now time.Time, m *model) (Change, bool) {
	m.next = now.Add(s.rules.Period)
	members := s.members(m)
	if ratio, _ := s.learnt(now, m); s.seen(m) >= ratioSeen {
		if next := NextRatio(m.ratio, ratio); s.lease != nil {
			m.wish = next
		} else if next != m.ratio {
			m.ratio, m.wish, s.dirty = next, next, true
		}
	}
	if pin := s.pinned(m.Name); pin != nil {
		if c, ok := s.repinned(now, m, pin); ok {
			return c, true
		}
		return s.change(now, m, s.mended(m, members), "replicas changed")
	}
	if m.decider.machine == nil {
		return s.change(now, m, s.mended(m, members), "replicas changed")
	}
	present, eligible := s.readyPlan(m)
	if present.Validate() != nil {
		m.planner = "waiting: a stage has no ready replica"
		return Change{}, false // repair's matter
	}
	measured := m.decider.mean()
	d := m.decider.machine.Step(adoption.Input{
		Now: now.Sub(s.zero).Seconds(), Plan: present, Model: m.Name, Replicas: eligible,
		Workload: s.workload(now, m, s.flow(now, m), eligible), Iterations: measured, Proximity: s.near(m).Map,
	})
	m.decider.reset(len(m.plan.Stages))
	m.planner = decision(d)
	word := Change{Time: now, Model: m.Name, Epoch: m.plan.Epoch, Decision: decisionOf(d), Reason: string(d.Reason), By: s.rules.Name}
	if !math.IsInf(d.Gain, 0) {
		word.Gain = d.Gain
	}
	word.Predicted, word.Observed = furthest(d.Present.Iterations, measured)
	if d.Adopt {
		if c, ok := s.change(now, m, park(d.Plan, m.plan, members), string(d.Reason)); ok {
			denied := s.denied(m, c.Stages)
			if word.Decision != Adopted || denied == nil {
				word.Stages = c.Stages
				return word, true
			}
			m.planner = string(d.Reason) + ": " + denied.Error()
			word.Decision, word.Reason = Denied, m.planner
		}
	}
	if c, ok := s.change(now, m, s.mended(m, members), "replicas changed"); ok {
		return c, true
	}
	if d.Reason != adoption.WaitingForPeriod {
		// It is stored with whatever is stored next.
		s.history = appendHistory(s.history, []Change{word})
	}
	return Change{}, false
}

// furthest returns the predicted and the measured iteration of the stage where
// the measured one exceeds the other most; zeros where nothing was measured.
func furthest(predicted, measured []float64) (p, o float64) {
	most := math.Inf(-1)
	for i := range min(len(predicted), len(measured)) {
		ratio := measured[i] / predicted[i]
		if measured[i] > 0 && predicted[i] > 0 && !math.IsInf(predicted[i], 0) && ratio > most {
			p, o, most = predicted[i], measured[i], ratio
		}
	}
	return p, o
}

// readyPlan is the plan in force as far as it is ready, and those replicas.
// It is not valid when a stage has none.
func (s *State) readyPlan(m *model) (policies.Plan, []policies.Replica) {
	var eligible []policies.Replica
	for _, r := range s.replicas {
		if r.Model == m.Name && r.ready() && r.stage >= 0 {
			eligible = append(eligible, r.Replica)
		}
	}
	plan := policies.Plan{Model: m.Name, Epoch: m.plan.Epoch}
	for _, stage := range m.plan.Stages {
		kept := policies.Stage{Low: stage.Low, High: stage.High}
		for _, id := range stage.Replicas {
			if r := s.serving(m, id); r != nil && r.ready() {
				kept.Replicas = append(kept.Replicas, id)
			}
		}
		plan.Stages = append(plan.Stages, kept)
	}
	return plan, eligible
}

// park puts the members that next lacks, because they are not ready, into the
// stage of next where the range that they had begins.
func park(next, before policies.Plan, members []member) policies.Plan {
	for _, r := range members {
		at := before.StageOfReplica(r.id)
		if r.ready || at < 0 || next.StageOfReplica(r.id) >= 0 {
			continue
		}
		stage := &next.Stages[next.StageOf(before.Stages[at].Low)]
		stage.Replicas = append(stage.Replicas, r.id)
	}
	return next
}

// decision says in words what the machine decided.
func decision(d adoption.Decision) string {
	text := string(d.Reason)
	if d.Gain != 0 && !math.IsInf(d.Gain, 0) {
		text += ": predicted gain " + strconv.Itoa(int(math.Round(100*d.Gain))) + " %"
	}
	if d.Err != nil {
		text += ": " + d.Err.Error()
	}
	return text
}

// seen counts the requests of a model's replicas.
func (s *State) seen(m *model) (n uint64) {
	for _, r := range s.replicas {
		if r.Model == m.Name {
			n += r.seen()
		}
	}
	return n
}
