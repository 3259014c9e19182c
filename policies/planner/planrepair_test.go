package planner

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit/plantest"
	"github.com/cascadeinfer/cascade/policies"
)

func TestRepairPlan(t *testing.T) {
	for _, c := range []struct {
		name, plan string
		members    string // as in "a b- c=50": "-" means not ready, "=" gives the work
		want       string
	}{
		{"nothing to do", "a b | c", "a b c", "a b |100| c"},
		{"one left", "a b | c", "a c", "a |100| c"},
		{"one joins where the work is", "a b | c", "a=10 b=10 c=90 d", "a b |100| c d"},
		{"one joins the short stage", "a b | c", "a=90 b=90 c=10 d", "a b d |100| c"},
		{"joins prefer a stage without a ready one", "a b | c", "a=90 b=90 c- d", "a b |100| c d"},
		{"the last of the long stage left", "a b c | d", "a b c", "a b |100| c"},
		{"the last of the short stage left", "a | b c d", "b c d", "b |100| c d"},
		{"a dead one stays listed and the stage borrows", "a b c | d", "a b c d-", "a b |100| c d"},
		{"no stage can spare one: stages merge", "a | b", "a b-", "a b"},
		{"the middle merges with the longer", "a | b | c", "a b- c", "a |100| b c"},
		{"borrow from the stage with most", "a b | c d e | f", "a b c d e f-", "a b |100| c d |200| e f"},
		{"borrow from the nearest of equals", "a b | c d | e", "a b c d e-", "a b |100| c |200| d e"},
		{"all dead: nothing moves", "a b | c", "a- b- c-", "a b |100| c"},
		{"all dead and a stage empty", "a b | c", "a- b-", "a b"},
		{"no member left: nothing moves", "a b | c", "", "a b |100| c"},
		{"only unready ones could be borrowed: stages merge", "a b | c", "a b- c-", "a b c"},
	} {
		var members []Member
		for _, f := range strings.Fields(c.members) {
			id, work, _ := strings.Cut(f, "=")
			m := Member{Ready: !strings.HasSuffix(id, "-"), ID: policies.ReplicaID(strings.TrimSuffix(id, "-"))}
			for _, d := range work {
				m.Work = m.Work*10 + policies.Tokens(d-'0')
			}
			members = append(members, m)
		}
		before := plantest.Parse(c.plan)
		if got := plantest.Format(RepairPlan(before, members)); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
		if !SameRouting(before, plantest.Parse(c.plan)) {
			t.Errorf("%s: Repair changed its argument to %q", c.name, plantest.Format(before))
		}
	}
}

// TestRepairKeepsInvariants checks for random plans and members that the result is
// valid, holds exactly the members and gives every stage a ready one where there is
// any, and that repairing it again changes nothing.
func TestRepairKeepsInvariants(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 5000 {
		pool := strings.Split("a b c d e f g h i j", " ")
		rng.Shuffle(len(pool), func(i, j int) { pool[i], pool[j] = pool[j], pool[i] })
		stages := 1 + rng.IntN(policies.MaxStages)
		parts := make([]string, stages)
		for i, id := range pool {
			if i < stages || rng.IntN(2) == 0 {
				parts[i%stages] += " " + id
			}
		}
		plan := plantest.Parse(strings.Join(parts, "|"))
		var members []Member
		anyReady := false
		for _, id := range pool {
			if rng.IntN(3) > 0 {
				m := Member{ID: policies.ReplicaID(id), Ready: rng.IntN(3) > 0, Work: policies.Tokens(rng.IntN(100))}
				members = append(members, m)
				anyReady = anyReady || m.Ready
			}
		}
		if len(members) == 0 {
			continue
		}
		got := RepairPlan(plan, members)
		if err := got.Validate(); err != nil {
			t.Fatalf("%s: %v", plantest.Format(plan), err)
		}
		for _, m := range members {
			if got.StageOfReplica(m.ID) < 0 {
				t.Fatalf("%q: member %s is in no stage of %q", plantest.Format(plan), m.ID, plantest.Format(got))
			}
		}
		for _, s := range got.Stages {
			ready := false
			for _, id := range s.Replicas {
				found := false
				for _, m := range members {
					if m.ID == id {
						found, ready = true, ready || m.Ready
					}
				}
				if !found {
					t.Fatalf("%s is not a member", id)
				}
			}
			if anyReady && !ready {
				t.Fatalf("%q with %v: a stage of %q has no ready replica", plantest.Format(plan), members, plantest.Format(got))
			}
		}
		if again := RepairPlan(got, members); !SameRouting(again, got) {
			t.Fatalf("repairing %q again gives %q", plantest.Format(got), plantest.Format(again))
		}
	}
}
