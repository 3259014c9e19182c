package balance

import (
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

// settle calls Next until nothing changes. It fails when that takes more calls than
// there are steps, or when a weight changes by more than one step.
func settle(t *testing.T, stage []Member) map[policies.ReplicaID]uint32 {
	t.Helper()
	for range len(WeightSteps) + 1 {
		next := NextWeights(stage)
		if len(next) != len(stage) {
			t.Fatalf("%d weights for %d replicas", len(next), len(stage))
		}
		moved := false
		for i := range stage {
			was, is := stepOf(stage[i].Weight), stepOf(next[stage[i].ID])
			if max(was-is, is-was) > 1 {
				t.Fatalf("replica %s moves from step %d to %d in one call", stage[i].ID, was, is)
			}
			moved = moved || stage[i].Weight != next[stage[i].ID]
			stage[i].Weight = next[stage[i].ID]
		}
		if !moved {
			return next
		}
	}
	t.Fatal("weights do not settle under a constant load")
	return nil
}

func TestNext(t *testing.T) {
	const kv = 100_000
	fresh := func(id string, work policies.Tokens) Member {
		return Member{ID: policies.ReplicaID(id), Work: work, KV: kv, Known: true, Weight: NeutralWeight}
	}
	late := func(id string, work policies.Tokens, weight uint32) Member {
		return Member{ID: policies.ReplicaID(id), Work: work, KV: kv, Weight: weight}
	}
	for _, c := range []struct {
		name  string
		stage []Member
		want  []uint32
	}{
		{"alone", []Member{fresh("a", 90_000)}, []uint32{100}},
		{"balanced", []Member{fresh("a", 50_000), fresh("b", 52_000)}, []uint32{100, 100}},
		{"idle: single requests are noise", []Member{fresh("a", 900), fresh("b", 0)}, []uint32{100, 100}},
		{"one carries thrice the other", []Member{fresh("a", 60_000), fresh("b", 20_000)}, []uint32{71, 200}},
		{"one claims nothing, always", []Member{fresh("a", 60_000), fresh("b", 60_000), fresh("c", 0)}, []uint32{71, 71, 400}},
		{"one claims the absurd", []Member{fresh("a", 60_000), fresh("b", 60_000), fresh("c", 1<<40)}, []uint32{141, 141, 50}},
		{"late ones keep their weight and do not count", []Member{fresh("a", 50_000), fresh("b", 50_000), late("c", 0, 141)}, []uint32{100, 100, 141}},
		{"all late", []Member{late("a", 90_000, 50), late("b", 0, 200)}, []uint32{50, 200}},
		{"never weighed", []Member{late("a", 0, 0), late("b", 0, 7)}, []uint32{100, 100}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := settle(t, c.stage)
			for i, r := range c.stage {
				if got[r.ID] != c.want[i] {
					t.Errorf("%s: weight %d, want %d", r.ID, got[r.ID], c.want[i])
				}
			}
		})
	}
}

// TestNextBounds checks that every weight is a step, whatever the replicas claim.
func TestNextBounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		stage := make([]Member, 1+rng.IntN(8))
		for i := range stage {
			stage[i] = Member{
				ID:   policies.ReplicaID(rune('a' + i)),
				Work: policies.Tokens(rng.Int64()) >> rng.IntN(63), KV: policies.Tokens(rng.Int64N(1 << 30)),
				Known: rng.IntN(4) > 0, Weight: WeightSteps[rng.IntN(len(WeightSteps))],
			}
		}
		settle(t, stage)
		for id, w := range NextWeights(stage) {
			if WeightSteps[stepOf(w)] != w {
				t.Fatalf("%s: weight %d is no step", id, w)
			}
		}
	}
}

// TestNextHysteresis checks that a load between two steps does not make a weight flap.
func TestNextHysteresis(t *testing.T) {
	a := Member{ID: "a", Work: 60_000, KV: 100_000, Known: true, Weight: NeutralWeight}
	b := Member{ID: "b", KV: 100_000, Known: true, Weight: NeutralWeight}
	changes := 0
	for i := range 200 {
		// b's work varies by ±10 % around a ratio that lies between two steps.
		b.Work = 44_000 + policies.Tokens(i%2)*9_000
		next := NextWeights([]Member{a, b})
		if next["b"] != b.Weight || next["a"] != a.Weight {
			changes++
		}
		a.Weight, b.Weight = next["a"], next["b"]
	}
	if changes > 2 {
		t.Errorf("weights changed %d times under a load that swings within a step", changes)
	}
}

// TestNextEvensOutUse checks that replicas with caches of different sizes come to use
// the same part of them, and that work derived from requests is compared with tokens.
func TestNextEvensOutUse(t *testing.T) {
	got := settle(t, []Member{
		{ID: "big", Work: 200_000, KV: 400_000, Known: true, Weight: NeutralWeight},
		{ID: "small", Work: 50_000, KV: 100_000, Known: true, Weight: NeutralWeight},
	})
	// The ideal ratio is four to one: 160 and 40.
	if got["big"] != 141 || got["small"] != 35 && got["small"] != 50 {
		t.Errorf("equal use: %v", got)
	}
	// Ten requests of 5,000 tokens are as much as 50,000 tokens.
	got = settle(t, []Member{
		{ID: "a", Work: 50_000, Requests: 10, KV: 400_000, Known: true, Weight: NeutralWeight},
		{ID: "b", Work: 15_000, Counted: true, Requests: 10, KV: 400_000, Known: true, Weight: NeutralWeight},
	})
	if got["a"] != NeutralWeight || got["b"] != NeutralWeight {
		t.Errorf("tokens and counted requests: %v", got)
	}
	got = settle(t, []Member{
		{ID: "a", Work: 60_000, KV: 400_000, Known: true, Weight: NeutralWeight},
		{ID: "b", KV: 400_000, Drift: true, Weight: 400},
		{ID: "c", KV: 400_000, Weight: 25},
		{ID: "d", KV: 400_000, Drift: true, Weight: 25},
		{ID: "e", KV: 400_000, Drift: true, Distrusted: true, Weight: 25},
	})
	if got["b"] != NeutralWeight || got["c"] != 25 || got["d"] != 25 || got["e"] != NeutralWeight {
		t.Errorf("drifting: %v", got)
	}
	got = settle(t, []Member{{ID: "a", KV: 400_000, Drift: true, Weight: 25}, {ID: "b", KV: 400_000, Drift: true, Weight: 400}})
	if got["a"] != NeutralWeight || got["b"] != NeutralWeight {
		t.Errorf("all are silent: %v", got)
	}
}

// TestNextBoundsCaches checks that a replica gains at most four shares by a cache that it
// reports, and costs the others no more.
func TestNextBoundsCaches(t *testing.T) {
	for _, others := range []int{1, 2, 9} {
		stage := []Member{{ID: "false", KV: 1 << 40, Known: true, Weight: NeutralWeight}}
		for i := range others {
			stage = append(stage, Member{ID: policies.ReplicaID(rune('a' + i)), Work: 50_000, KV: 100_000, Known: true, Weight: NeutralWeight})
		}
		stage[0].Work = 200_000 // a half of what counts
		got := settle(t, stage)
		if got["false"] > 6*got["a"] {
			t.Errorf("%d others: %v", others, got)
		}
	}
	if got := NextWeights(nil); len(got) != 0 {
		t.Errorf("no replicas: %v", got)
	}
}
