package fleet

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/xds/store"
)

// pastOf is what is kept of a plan.
func pastOf(p policies.Plan) store.Past {
	out := store.Past{Model: p.Model, Epoch: p.Epoch}
	for i, st := range p.Stages {
		if i > 0 {
			out.Cuts = append(out.Cuts, st.Low)
		}
		out.Counts = append(out.Counts, len(st.Replicas))
	}
	return out
}

// appendPast returns the former plans with one that is replaced by next behind
// them, bounded. Only a plan that divided the lengths differently is another
// one: repairs, and what changes nothing, would push out all others. Of plans
// with the same cuts the last is kept, and of one that somebody put back by
// editing the store none that came after it: the oldest come first.
func appendPast(past []store.Past, replaced policies.Plan, next []policies.Stage) []store.Past {
	was := pastOf(replaced)
	if len(replaced.Stages) == 0 || slices.Equal(was.Cuts, pastOf(policies.Plan{Stages: next}).Cuts) {
		return past
	}
	past = slices.DeleteFunc(slices.Clone(past), func(p store.Past) bool {
		return p.Model == was.Model && (slices.Equal(p.Cuts, was.Cuts) || p.Epoch >= was.Epoch)
	})
	past = append(past, was)
	n := 0
	for _, p := range past {
		if p.Model == was.Model {
			n++
		}
	}
	if n > store.MaxPast {
		i := slices.IndexFunc(past, func(p store.Past) bool { return p.Model == was.Model })
		past = slices.Delete(past, i, i+1)
	}
	return past
}

// former is a plan of a model that was in force once, the last one for epoch 0.
// The plan in force has an epoch, too, and is none of them.
func (s *State) former(model string, epoch policies.Epoch) (store.Past, bool) {
	for _, p := range slices.Backward(s.object.Past) {
		if p.Model == model && (epoch == 0 || p.Epoch == epoch) {
			return p, true
		}
	}
	return store.Past{}, false
}

// revived is the plan that divides the lengths as a former one did, among the
// replicas that there are now: as many to each stage as had been, or in
// proportion, short to long in the order of the plan in force. It has fewer
// stages where there are fewer replicas, and is the plan in force where none is
// ready.
func (s *State) revived(m *model, p store.Past) policies.Plan {
	present := policies.Plan{Model: m.Name, Epoch: m.plan.Epoch}
	var eligible []policies.Replica
	for _, st := range m.plan.Stages {
		kept := policies.Stage{Low: st.Low, High: st.High}
		for _, id := range st.Replicas {
			if r := s.serving(m, id); r != nil && s.serves(r) {
				kept.Replicas = append(kept.Replicas, id)
				eligible = append(eligible, r.Replica)
			}
		}
		present.Stages = append(present.Stages, kept)
	}
	if len(eligible) == 0 {
		return m.plan
	}
	divided := adoption.ScaleCounts(policies.Partition{Cuts: p.Cuts, Counts: p.Counts}, len(eligible))
	var rest []member
	for _, r := range s.replicas {
		if r.Model == m.Name && r.stage >= 0 && !r.gone && !r.ordered() && !s.serves(r) {
			rest = append(rest, member{id: r.ID})
		}
	}
	return park(s.near(m).Assign(present, divided, eligible), m.plan, rest)
}

// sameCuts says that two divisions have the same boundaries.
func sameCuts(p store.Past, plan policies.Plan) bool {
	return slices.Equal(p.Cuts, pastOf(plan).Cuts)
}
