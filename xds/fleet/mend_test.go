package fleet

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

// parsePlan reads "a b | c d": stages short to long, cut at 100, 200, ….
func parsePlan(text string) policies.Plan {
	p := policies.Plan{Model: "m", Epoch: 7}
	parts := strings.Split(text, "|")
	for i, part := range parts {
		s := policies.Stage{Low: policies.Tokens(100 * i), High: policies.Tokens(100 * (i + 1))}
		if i == len(parts)-1 {
			s.High = policies.Unbounded
		}
		for _, id := range strings.Fields(part) {
			s.Replicas = append(s.Replicas, policies.ReplicaID(id))
		}
		p.Stages = append(p.Stages, s)
	}
	return p
}

func printPlan(p policies.Plan) string {
	var b strings.Builder
	for i, s := range p.Stages {
		if i > 0 {
			b.WriteString(" |" + s.Low.String() + "| ")
		}
		for j, id := range s.Replicas {
			if j > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(string(id))
		}
	}
	return b.String()
}

func TestMend(t *testing.T) {
	for _, c := range []struct {
		name, plan string
		members    string // "a b- c=50": - is not ready, = is its work
		want       string
	}{
		{"nothing to do", "a b | c", "a b c", "a b |100| c"},
		{"one left", "a b | c", "a c", "a |100| c"},
		{"one joins where the work is", "a b | c", "a=10 b=10 c=90 d", "a b |100| c d"},
		{"one joins the short stage", "a b | c", "a=90 b=90 c=10 d", "a b d |100| c"},
		{"joins prefer a stage without a ready one", "a b | c", "a=90 b=90 c- d", "a b |100| c d"},
		{"the last of the long stage left", "a b c | d", "a b c", "a b |100| c"},
		{"the last of the short stage left", "a | b c d", "b c d", "b |100| c d"},
		{"a dead one stays listed and gets help", "a b c | d", "a b c d-", "a b |100| c d"},
		{"nobody can lend: stages merge", "a | b", "a b-", "a b"},
		{"the middle merges with the longer", "a | b | c", "a b- c", "a |100| b c"},
		{"lend from the stage with most", "a b | c d e | f", "a b c d e f-", "a b |100| c d |200| e f"},
		{"the nearest of equals lends", "a b | c d | e", "a b c d e-", "a b |100| c |200| d e"},
		{"all dead: nothing moves", "a b | c", "a- b- c-", "a b |100| c"},
		{"all dead and a stage empty", "a b | c", "a- b-", "a b"},
		{"nobody left: nothing moves", "a b | c", "", "a b |100| c"},
		{"only the unready can be lent: no", "a b | c", "a b- c-", "a b c"},
	} {
		var members []member
		for _, f := range strings.Fields(c.members) {
			id, work, _ := strings.Cut(f, "=")
			m := member{ready: !strings.HasSuffix(id, "-"), id: policies.ReplicaID(strings.TrimSuffix(id, "-"))}
			for _, d := range work {
				m.work = m.work*10 + policies.Tokens(d-'0')
			}
			members = append(members, m)
		}
		before := parsePlan(c.plan)
		if got := printPlan(mend(before, members)); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
		if !samePlan(before, parsePlan(c.plan)) {
			t.Errorf("%s: mend changed its argument to %q", c.name, printPlan(before))
		}
	}
}

// TestMendKeepsInvariants: for random plans and members, the result is valid,
// holds exactly the members, gives every stage a ready one where there is any,
// and does nothing the second time.
func TestMendKeepsInvariants(t *testing.T) {
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
		plan := parsePlan(strings.Join(parts, "|"))
		var members []member
		anyReady := false
		for _, id := range pool {
			if rng.IntN(3) > 0 {
				m := member{id: policies.ReplicaID(id), ready: rng.IntN(3) > 0, work: policies.Tokens(rng.IntN(100))}
				members = append(members, m)
				anyReady = anyReady || m.ready
			}
		}
		if len(members) == 0 {
			continue
		}
		got := mend(plan, members)
		if err := got.Validate(); err != nil {
			t.Fatalf("%s: %v", printPlan(plan), err)
		}
		for _, m := range members {
			if got.StageOfReplica(m.id) < 0 {
				t.Fatalf("%q: member %s is in no stage of %q", printPlan(plan), m.id, printPlan(got))
			}
		}
		for _, s := range got.Stages {
			ready := false
			for _, id := range s.Replicas {
				found := false
				for _, m := range members {
					if m.id == id {
						found, ready = true, ready || m.ready
					}
				}
				if !found {
					t.Fatalf("%s is no member", id)
				}
			}
			if anyReady && !ready {
				t.Fatalf("%q with %v: a stage of %q has no ready replica", printPlan(plan), members, printPlan(got))
			}
		}
		if again := mend(got, members); !samePlan(again, got) {
			t.Fatalf("mending %q again gives %q", printPlan(got), printPlan(again))
		}
	}
}
