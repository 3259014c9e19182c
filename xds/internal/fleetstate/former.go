package fleetstate

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/store"
)

// FormerPlan returns the part of a plan that the history keeps.
func FormerPlan(p policies.Plan) store.FormerPlan {
	out := store.FormerPlan{Model: p.Model, Epoch: p.Epoch, Cuts: p.Cuts()}
	for _, st := range p.Stages {
		out.Counts = append(out.Counts, len(st.Replicas))
	}
	return out
}

// AppendFormer returns the former plans with the plan appended that next replaces,
// bounded. A plan is kept only if its cuts differ from those of next: repairs and
// unchanged plans would push out all others. Of plans with the same cuts the last is
// kept. If an operator put an older plan back by editing the store, the plans with
// later epochs are dropped: the list is sorted by epoch.
func AppendFormer(former []store.FormerPlan, replaced policies.Plan, next []policies.Stage) []store.FormerPlan {
	last := FormerPlan(replaced)
	if len(replaced.Stages) == 0 || slices.Equal(last.Cuts, FormerPlan(policies.Plan{Stages: next}).Cuts) {
		return former
	}
	former = slices.DeleteFunc(slices.Clone(former), func(p store.FormerPlan) bool {
		return p.Model == last.Model && (slices.Equal(p.Cuts, last.Cuts) || p.Epoch >= last.Epoch)
	})
	former = append(former, last)
	ofModel := func(p store.FormerPlan) bool { return p.Model == last.Model }
	n := 0
	for _, p := range former {
		if ofModel(p) {
			n++
		}
	}
	if n > store.MaxFormerPlans {
		i := slices.IndexFunc(former, ofModel)
		former = slices.Delete(former, i, i+1)
	}
	return former
}

// FindFormer returns the former plan of a model with an epoch, or the last one for
// epoch 0. The plan in force is not among them.
func FindFormer(former []store.FormerPlan, model string, epoch policies.Epoch) (store.FormerPlan, bool) {
	for _, p := range slices.Backward(former) {
		if p.Model == model && (epoch == 0 || p.Epoch == epoch) {
			return p, true
		}
	}
	return store.FormerPlan{}, false
}

// SameCuts reports whether a former plan and a plan have the same boundaries.
func SameCuts(former store.FormerPlan, plan policies.Plan) bool {
	return slices.Equal(former.Cuts, FormerPlan(plan).Cuts)
}
