package adoption_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
)

// assign assigns replicas that are all alike.
func assign(prev policies.Plan, p policies.Partition, replicas []policies.Replica) policies.Plan {
	return adoption.Assigner{}.Assign(prev, p, replicas)
}

// fewestMoves tries every way to give replicas to stages that has the right
// counts and keeps those of prev in order, and returns the fewest moves.
func fewestMoves(prev, next policies.Plan, counts []int, ids []policies.ReplicaID) int {
	order := func(id policies.ReplicaID) int { // position short to long in prev, or −1
		n := 0
		for _, s := range prev.Stages {
			for _, x := range s.Replicas {
				if x == id {
					return n
				}
				n++
			}
		}
		return -1
	}
	stage := make([]int, len(ids))
	left := slices.Clone(counts)
	best := math.MaxInt
	var try func(i int)
	try = func(i int) {
		if i == len(ids) {
			for a := range ids {
				for b := range ids {
					if pa, pb := order(ids[a]), order(ids[b]); pa >= 0 && pb >= 0 && pa < pb && stage[a] > stage[b] {
						return
					}
				}
			}
			p := policies.Plan{Stages: slices.Clone(next.Stages)}
			for s := range p.Stages {
				p.Stages[s].Replicas = nil
			}
			for a, s := range stage {
				p.Stages[s].Replicas = append(p.Stages[s].Replicas, ids[a])
			}
			best = min(best, adoption.CountMoves(prev, p))
			return
		}
		for s := range left {
			if left[s] > 0 {
				left[s]--
				stage[i] = s
				try(i + 1)
				left[s]++
			}
		}
	}
	try(0)
	return best
}

// randomPlan deals a shuffled part of the ids, and some that are gone, to stages.
func randomPlan(rng *rand.Rand, ids []policies.ReplicaID) policies.Plan {
	var there []policies.ReplicaID
	for _, id := range ids {
		if rng.IntN(4) > 0 {
			there = append(there, id)
		}
	}
	for len(there) < 1 || rng.IntN(3) == 0 {
		there = append(there, policies.ReplicaID("gone"+string(rune('a'+len(there)))))
	}
	rng.Shuffle(len(there), func(i, j int) { there[i], there[j] = there[j], there[i] })
	cuts := randomCuts(rng, 1+rng.IntN(min(4, len(there))))
	p := policies.Plan{Model: "m", Epoch: 7}
	low := policies.Tokens(0)
	for i := range len(cuts) + 1 {
		high, n := policies.Unbounded, len(there)
		if i < len(cuts) {
			high, n = cuts[i], 1+rng.IntN(len(there)-(len(cuts)-i))
		}
		p.Stages = append(p.Stages, policies.Stage{Low: low, High: high, Replicas: there[:n]})
		low, there = high, there[n:]
	}
	return p
}

func randomCuts(rng *rand.Rand, stages int) []policies.Tokens {
	var cuts []policies.Tokens
	for low := policies.Tokens(0); len(cuts) < stages-1; {
		low = low*policies.Tokens(1+rng.IntN(3)) + 1 + policies.Tokens(rng.IntN(500))
		cuts = append(cuts, low)
	}
	return cuts
}

// TestAssign checks against the enumeration of all assignments.
func TestAssign(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	moved := 0
	for i := range 3000 {
		all := []policies.ReplicaID{"r1", "r2", "r3", "r4", "r5", "r6"}[:1+rng.IntN(6)]
		var replicas []policies.Replica
		var ids []policies.ReplicaID
		for _, id := range all {
			draining := len(ids) > 0 && rng.IntN(6) == 0
			replicas = append(replicas, policies.Replica{ID: id, Model: "m", Draining: draining})
			if !draining {
				ids = append(ids, id)
			}
		}
		rng.Shuffle(len(replicas), func(i, j int) { replicas[i], replicas[j] = replicas[j], replicas[i] })
		prev := randomPlan(rng, all)
		testkit.NoError(t, prev.Validate())
		p := policies.Partition{Cuts: randomCuts(rng, 1+rng.IntN(len(ids)))}
		if rng.IntN(2) == 0 && len(prev.Stages) <= len(ids) { // the same cuts
			p.Cuts = nil
			for _, s := range prev.Stages[1:] {
				p.Cuts = append(p.Cuts, s.Low)
			}
		}
		left := len(ids)
		for s := range p.Cuts {
			n := 1 + rng.IntN(left-(len(p.Cuts)-s))
			p.Counts = append(p.Counts, n)
			left -= n
		}
		p.Counts = append(p.Counts, left)

		next := assign(prev, p, replicas)
		if err := next.Validate(); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
		var got []policies.ReplicaID
		for s, x := range next.Stages {
			if len(x.Replicas) != p.Counts[s] || s > 0 && x.Low != p.Cuts[s-1] {
				t.Fatalf("%d: %+v for %+v", i, next, p)
			}
			got = append(got, x.Replicas...)
		}
		slices.Sort(got)
		if !slices.Equal(got, ids) || next.Model != "m" || next.Epoch != 7 {
			t.Fatalf("%d: %+v, replicas %v", i, next, ids)
		}
		moves, want := adoption.CountMoves(prev, next), fewestMoves(prev, next, p.Counts, ids)
		if moves != want {
			t.Fatalf("%d: %d moves from %+v to %+v, want %d", i, moves, prev, next, want)
		}
		if moves > 0 {
			moved++
		}
		// The order of the plan is kept.
		if order := inOrder(prev, next); !order {
			t.Fatalf("%d: %+v changes the order of %+v", i, next, prev)
		}
		if again := assign(prev, p, replicas); !reflect.DeepEqual(again, next) {
			t.Fatalf("%d: equal arguments give two plans", i)
		}
		// On several hosts others may go, but no more, and each stage keeps the order.
		for r := range replicas {
			replicas[r].Host = string(rune('a' + rng.IntN(3)))
		}
		spread := assign(prev, p, replicas)
		if err := spread.Validate(); err != nil || adoption.CountMoves(prev, spread) != want {
			t.Fatalf("%d: %d moves from %+v to %+v, want %d; %v", i, adoption.CountMoves(prev, spread), prev, spread, want, err)
		}
		for s, x := range spread.Stages {
			if len(x.Replicas) != p.Counts[s] || !inOrder(prev, policies.Plan{Stages: spread.Stages[s : s+1]}) {
				t.Fatalf("%d: stage %d of %+v, want %d replicas in the order of %+v", i, s, spread, p.Counts[s], prev)
			}
		}
	}
	if moved < 300 {
		t.Errorf("only %d of 3000 plans move a replica", moved)
	}
}

// inOrder says that next lists the replicas of prev in prev's order.
func inOrder(prev, next policies.Plan) bool {
	at := make(map[policies.ReplicaID]int)
	for _, s := range prev.Stages {
		for _, id := range s.Replicas {
			at[id] = len(at) + 1
		}
	}
	last := 0
	for _, s := range next.Stages {
		for _, id := range s.Replicas {
			if p := at[id]; p > 0 {
				if p < last {
					return false
				}
				last = p
			}
		}
	}
	return true
}

// TestAssignMiscount checks that no replica is lost when counts do not add up.
func TestAssignMiscount(t *testing.T) {
	replicas := []policies.Replica{{ID: "b", Model: "m"}, {ID: "a", Model: "m"}, {ID: "c", Model: "m"}}
	for _, counts := range [][]int{{1, 1}, {1, 9}, {2, 1}} {
		p := assign(policies.Plan{}, policies.Partition{Cuts: []policies.Tokens{10}, Counts: counts}, replicas)
		if err := p.Validate(); err != nil || len(p.Stages[0].Replicas)+len(p.Stages[1].Replicas) != 3 {
			t.Errorf("counts %v: %+v, %v", counts, p, err)
		}
	}
	p := assign(policies.Plan{}, policies.Partition{Cuts: []policies.Tokens{10}, Counts: []int{5, 1}}, replicas)
	if p.Validate() == nil {
		t.Error("a plan with an empty stage validates")
	}
	if p := assign(policies.Plan{}, policies.Partition{}, nil); len(p.Stages) != 0 {
		t.Errorf("without replicas: %+v", p)
	}
}

func TestMoves(t *testing.T) {
	plan := func(cut policies.Tokens) policies.Plan {
		return policies.Plan{Stages: []policies.Stage{{Low: 0, High: cut, Replicas: []policies.ReplicaID{"a"}}, {Low: cut, High: policies.Unbounded, Replicas: []policies.ReplicaID{"b"}}}}
	}
	swap := func(p policies.Plan) policies.Plan {
		p.Stages[0].Replicas, p.Stages[1].Replicas = p.Stages[1].Replicas, p.Stages[0].Replicas
		return p
	}
	one := policies.OneStagePlan("m", []policies.ReplicaID{"a", "b"})
	for name, c := range map[string]struct {
		prev, next policies.Plan
		want       int
	}{
		"same":        {plan(1000), plan(1000), 0},
		"cut moves":   {plan(1000), plan(3000), 0},
		"divided":     {one, plan(1000), 0},
		"merged":      {plan(1000), one, 0},
		"exchanged":   {plan(1000), swap(plan(1000)), 2},
		"overlapping": {plan(1000), swap(plan(1500)), 2}, // 0.6 of 10 doublings
		"joined":      {policies.OneStagePlan("m", []policies.ReplicaID{"a"}), plan(1000), 0},
		"from none":   {policies.Plan{}, plan(1000), 0},
		"half":        {ranged(0, 3), ranged(1, 7), 0}, // 1 of 2 doublings
		"less":        {ranged(0, 7), ranged(3, 31), 1},
		"apart":       {ranged(0, 3), ranged(7, 31), 1},
	} {
		if got := adoption.CountMoves(c.prev, c.next); got != c.want {
			t.Errorf("%s: %d moves, want %d", name, got, c.want)
		}
	}
	home := make(map[policies.ReplicaID]policies.Stage)
	adoption.CountMovesIn(home, ranged(0, 3), ranged(0, 3))
	if got := adoption.CountMovesIn(home, policies.Plan{}, ranged(7, 31)); got != 0 {
		t.Errorf("%d moves from the plan of an earlier call", got)
	}
}

// ranged is a plan of one replica with a range.
func ranged(low, high policies.Tokens) policies.Plan {
	return policies.Plan{Stages: []policies.Stage{{Low: low, High: high, Replicas: []policies.ReplicaID{"a"}}}}
}

// TestLostStage checks that a stage which has lost all its replicas gets one of the stage
// that is furthest above its share.
func TestLostStage(t *testing.T) {
	m := testkit.Must(adoption.New(adoption.Config{Planner: &script{Best: 100, One: 100, Present: 100}}))
	stages := func(counts ...int) (p policies.Plan, list []policies.Replica) {
		p.Model = "m"
		for i, n := range counts {
			s := policies.Stage{Low: policies.Tokens(100 * i), High: policies.Tokens(100 * (i + 1))}
			if i == len(counts)-1 {
				s.High = policies.Unbounded
			}
			for k := range n {
				id := policies.ReplicaID(fmt.Sprintf("r%d-%d", i, k))
				s.Replicas, list = append(s.Replicas, id), append(list, policies.Replica{ID: id, Model: "m"})
			}
			p.Stages = append(p.Stages, s)
		}
		return p, list
	}
	for _, c := range []struct {
		counts []int
		lost   int
		want   []int
	}{
		{[]int{3, 2, 1}, 2, []int{2, 2, 1}}, {[]int{2, 3, 1}, 2, []int{2, 2, 1}}, {[]int{1, 3, 2}, 0, []int{1, 2, 2}}, {[]int{2, 1, 3}, 1, []int{2, 1, 2}},
	} {
		plan, list := stages(c.counts...)
		list = slices.DeleteFunc(list, func(r policies.Replica) bool { return slices.Contains(plan.Stages[c.lost].Replicas, r.ID) })
		d := m.Step(adoption.Input{Model: "m", Plan: plan, Replicas: list})
		var got []int
		for _, s := range d.Plan.Stages {
			got = append(got, len(s.Replicas))
		}
		if !d.Adopt || !slices.Equal(got, c.want) {
			t.Errorf("%v without stage %d: %v, want %v", c.counts, c.lost, got, c.want)
		}
	}
}

func TestScale(t *testing.T) {
	p := policies.Partition{Cuts: []policies.Tokens{100, 900}, Counts: []int{2, 1, 1}}
	for n, want := range map[int][]int{8: {4, 2, 2}, 5: {3, 1, 1}, 4: {2, 1, 1}, 3: {1, 1, 1}, 2: {2}} {
		got := adoption.ScaleCounts(p, n)
		if !slices.Equal(got.Counts, want) || len(got.Cuts) != len(want)-1 {
			t.Errorf("%d replicas: %v at %v, want %v", n, got.Counts, got.Cuts, want)
		}
	}
	if !slices.Equal(p.Counts, []int{2, 1, 1}) {
		t.Error("the partition was changed")
	}
}

// TestAssignPacksHosts checks that adjacent stages are on one host where possible, from the
// first plan on and when replicas change stages later.
func TestAssignPacksHosts(t *testing.T) {
	var replicas []policies.Replica
	for i := range 8 {
		replicas = append(replicas, policies.Replica{ID: policies.ReplicaID(fmt.Sprint("r", i)), Model: "m", Host: []string{"b", "a"}[i%2]})
	}
	first := adoption.Assigner{PackHosts: true}.Assign(policies.Plan{}, policies.Partition{Cuts: []policies.Tokens{100}, Counts: []int{4, 4}}, slices.Clone(replicas))
	if got := fmt.Sprint(first.Stages[0].Replicas, first.Stages[1].Replicas); got != "[r1 r3 r5 r7] [r0 r2 r4 r6]" {
		t.Errorf("the first plan has %s", got)
	}
	plan := policies.OneStagePlan("m", []policies.ReplicaID{"r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7"})
	for _, c := range []struct {
		counts []int
		want   string
	}{
		{[]int{2, 2, 2, 2}, "aa aa bb bb"},
		{[]int{3, 2, 2, 1}, "aaa ab bb b"},
		{[]int{4, 4}, "aaaa bbbb"},
		{[]int{1, 2, 1, 1, 3}, "a aa a b bbb"},
	} {
		p := policies.Partition{Counts: c.counts}
		for i := range len(c.counts) - 1 {
			p.Cuts = append(p.Cuts, policies.Tokens(100<<i))
		}
		plan = adoption.Assigner{PackHosts: true}.Assign(plan, p, slices.Clone(replicas))
		testkit.NoError(t, plan.Validate())
		var hosts []string
		for _, s := range plan.Stages {
			at := ""
			for _, id := range s.Replicas {
				at += replicas[id[1]-'0'].Host
			}
			hosts = append(hosts, at)
		}
		if got := strings.Join(hosts, " "); got != c.want {
			t.Errorf("%v: hosts %q, want %q", c.counts, got, c.want)
		}
	}
}

// TestJoiners adds replicas to plans without moving others: they join the longest stage, each once, and those of
// the hosts take turns.
func TestJoiners(t *testing.T) {
	var replicas []policies.Replica
	for _, r := range []string{"a3", "b5", "a2", "b4", "a1", "c6", "a1"} {
		replicas = append(replicas, policies.Replica{ID: policies.ReplicaID(r), Model: "m", Host: r[:1]})
	}
	p := assign(policies.Plan{}, policies.Partition{Counts: []int{6}}, slices.Clone(replicas))
	if got := fmt.Sprint(p.Stages[0].Replicas); got != "[a1 b4 c6 a2 b5 a3]" {
		t.Errorf("%s join the first plan", got)
	}
	for r := range replicas {
		replicas[r].Host = ""
	}
	prev := policies.OneStagePlan("m", []policies.ReplicaID{"a1", "a2", "a3"})
	p = assign(prev, policies.Partition{Cuts: []policies.Tokens{1000}, Counts: []int{2, 4}}, replicas)
	if got := fmt.Sprint(p.Stages[0].Replicas, p.Stages[1].Replicas); got != "[a1 a2] [a3 b4 b5 c6]" {
		t.Errorf("%s, want those that join in the second stage", got)
	}
}
