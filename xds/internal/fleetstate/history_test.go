package fleetstate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/xds/store"
)

// cut returns the stages of a plan with the cuts.
func cut(at ...policies.Tokens) []policies.Stage {
	stages := []policies.Stage{{Replicas: []policies.ReplicaID{"r"}}}
	for _, low := range at {
		stages = append(stages, policies.Stage{Low: low, Replicas: []policies.ReplicaID{"r"}})
	}
	return stages
}

// listFormer lists former plans as model, epoch and cuts.
func listFormer(former []store.FormerPlan) string {
	var out []string
	for _, p := range former {
		out = append(out, fmt.Sprintf("%s%d%v", p.Model, p.Epoch, p.Cuts))
	}
	return strings.Join(out, " ")
}

// TestAppendFormer checks which plans an operator may return to after a change of plan.
func TestAppendFormer(t *testing.T) {
	former := []store.FormerPlan{{Model: "m", Epoch: 2, Cuts: []policies.Tokens{10}}, {Model: "n", Epoch: 4, Cuts: []policies.Tokens{20}}, {Model: "m", Epoch: 6, Cuts: []policies.Tokens{30}}}
	for name, c := range map[string]struct {
		replaced policies.Plan
		next     []policies.Stage
		want     string
	}{
		"other cuts":             {policies.Plan{Model: "m", Epoch: 8, Stages: cut(20)}, cut(25), "m2[10] n4[20] m6[30] m8[20]"},
		"a repair":               {policies.Plan{Model: "m", Epoch: 8, Stages: cut(20)}, cut(20), "m2[10] n4[20] m6[30]"},
		"the first plan":         {policies.Plan{Model: "m"}, cut(20), "m2[10] n4[20] m6[30]"},
		"cuts that are kept":     {policies.Plan{Model: "m", Epoch: 8, Stages: cut(10)}, cut(25), "n4[20] m6[30] m8[10]"},
		"an older one was put":   {policies.Plan{Model: "m", Epoch: 3, Stages: cut(40)}, cut(25), "m2[10] n4[20] m3[40]"},
		"the last one was put":   {policies.Plan{Model: "m", Epoch: 6, Stages: cut(40)}, cut(25), "m2[10] n4[20] m6[40]"},
		"another model's cuts":   {policies.Plan{Model: "m", Epoch: 8, Stages: cut(20)}, cut(), "m2[10] n4[20] m6[30] m8[20]"},
		"no cuts, and then some": {policies.Plan{Model: "n", Epoch: 9, Stages: cut()}, cut(5), "m2[10] n4[20] m6[30] n9[]"},
	} {
		before := listFormer(former)
		if got := listFormer(AppendFormer(former, c.replaced, c.next)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if listFormer(former) != before {
			t.Fatalf("%s: changed its argument to %s", name, listFormer(former))
		}
	}
}

// TestFormerPlansAreBounded checks that each model keeps its last store.MaxFormerPlans.
func TestFormerPlansAreBounded(t *testing.T) {
	former := []store.FormerPlan{{Model: "n", Epoch: 1}, {Model: "n", Epoch: 2, Cuts: []policies.Tokens{7}}}
	for i := range store.MaxFormerPlans + 2 {
		at := policies.Tokens(10 * (i + 1))
		former = AppendFormer(former, policies.Plan{Model: "m", Epoch: policies.Epoch(i + 3), Stages: cut(at)}, cut(at+1))
		if n, want := len(former), 2+min(i+1, store.MaxFormerPlans); n != want {
			t.Fatalf("%d are kept after %d changes, want %d: %s", n, i+1, want, listFormer(former))
		}
	}
	if former[0].Model != "n" || former[1].Model != "n" || former[2].Epoch != 5 {
		t.Errorf("the oldest of m was not dropped: %s", listFormer(former))
	}
}

// TestFromStored checks whence the stages of stored decisions come: from those that this
// control plane knows, or from the stored plan of the same epoch.
func TestFromStored(t *testing.T) {
	at := time.Unix(100, 0)
	own, stored, other := cut(1), cut(2), cut(3)
	change := Change{Change: planner.Change{Model: "m", Epoch: 5, Reason: "gain", Stages: own}, Time: at}
	known := func(edit func(*Change)) []Change {
		c := change
		c.Stages = other
		edit(&c)
		return []Change{c, change, c}
	}
	reason := store.Reason{Model: "m", Epoch: 5, At: at, Text: "gain", Decision: planner.Adopted, Gain: 0.5, By: "me"}
	plans := []policies.Plan{{Model: "n", Epoch: 5, Stages: other}, {Model: "m", Epoch: 5, Stages: stored}, {Model: "m", Epoch: 4, Stages: other}}
	for name, c := range map[string]struct {
		decision string
		plans    []policies.Plan
		known    []Change
		want     []policies.Stage
	}{
		"of another model":      {planner.Adopted, plans, known(func(c *Change) { c.Model = "n" }), own},
		"of another epoch":      {planner.Adopted, plans, known(func(c *Change) { c.Epoch = 6 }), own},
		"for another reason":    {planner.Adopted, plans, known(func(c *Change) { c.Reason = "edit" }), own},
		"of another time":       {planner.Adopted, plans, known(func(c *Change) { c.Time = at.Add(1) }), own},
		"in another time zone":  {planner.Adopted, plans, []Change{{Change: change.Change, Time: at.In(time.FixedZone("x", 60))}}, own},
		"the stored plan's":     {planner.Adopted, plans, nil, stored},
		"of a plan long gone":   {planner.Adopted, plans[:1], nil, nil},
		"of one that was kept":  {planner.Kept, plans, nil, nil},
		"known of one kept":     {planner.Kept, plans, []Change{change}, own},
		"of an earlier version": {"", plans, nil, stored},
	} {
		r := reason
		r.Decision = c.decision
		got := FromStored(store.Object{Plans: c.plans, Reasons: []store.Reason{r}}, c.known)
		if len(got) != 1 || !slices.EqualFunc(got[0].Stages, c.want, func(a, b policies.Stage) bool { return a.Low == b.Low }) {
			t.Errorf("%s: %+v, want stages %v", name, got, c.want)
			continue
		}
		if got[0].Gain != 0.5 || got[0].By != "me" || !got[0].Time.Equal(at) || got[0].Decision != c.decision {
			t.Errorf("%s: %+v", name, got[0])
		}
	}
}
