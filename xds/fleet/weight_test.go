package fleet

import (
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// settle calls Weights until nothing changes, and fails when that takes longer
// than the steps there are, or when a weight moves by more than one step.
func settle(t *testing.T, stage []Loaded) map[policies.ReplicaID]uint32 {
	t.Helper()
	for range len(steps) + 1 {
		next := Weights(stage)
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

func TestWeights(t *testing.T) {
	const kv = 100_000
	fresh := func(id string, work policies.Tokens) Loaded {
		return Loaded{ID: policies.ReplicaID(id), Work: work, KV: kv, Fresh: true, Weight: Neutral}
	}
	late := func(id string, work policies.Tokens, weight uint32) Loaded {
		return Loaded{ID: policies.ReplicaID(id), Work: work, KV: kv, Weight: weight}
	}
	for _, c := range []struct {
		name  string
		stage []Loaded
		want  []uint32
	}{
		{"alone", []Loaded{fresh("a", 90_000)}, []uint32{100}},
		{"balanced", []Loaded{fresh("a", 50_000), fresh("b", 52_000)}, []uint32{100, 100}},
		{"idle: single requests are noise", []Loaded{fresh("a", 900), fresh("b", 0)}, []uint32{100, 100}},
		{"one carries thrice the other", []Loaded{fresh("a", 60_000), fresh("b", 20_000)}, []uint32{71, 200}},
		{"one claims nothing, always", []Loaded{fresh("a", 60_000), fresh("b", 60_000), fresh("c", 0)}, []uint32{71, 71, 400}},
		{"one claims the absurd", []Loaded{fresh("a", 60_000), fresh("b", 60_000), fresh("c", maxTokens)}, []uint32{141, 141, 50}},
		{"late ones keep their weight and do not count", []Loaded{fresh("a", 50_000), fresh("b", 50_000), late("c", 0, 141)}, []uint32{100, 100, 141}},
		{"all late", []Loaded{late("a", 90_000, 50), late("b", 0, 200)}, []uint32{50, 200}},
		{"never weighed", []Loaded{late("a", 0, 0), late("b", 0, 7)}, []uint32{100, 100}},
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

// TestWeightsBounds: whatever replicas claim, every weight is a step.
func TestWeightsBounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		stage := make([]Loaded, 1+rng.IntN(8))
		for i := range stage {
			stage[i] = Loaded{
				ID:   policies.ReplicaID(rune('a' + i)),
				Work: policies.Tokens(rng.Int64()) >> rng.IntN(63), KV: policies.Tokens(rng.Int64N(1 << 30)),
				Fresh: rng.IntN(4) > 0, Weight: steps[rng.IntN(len(steps))],
			}
		}
		settle(t, stage)
		for id, w := range Weights(stage) {
			if steps[stepOf(w)] != w {
				t.Fatalf("%s: weight %d is no step", id, w)
			}
		}
	}
}

// TestWeightsHold: a load between two steps does not make a weight flap.
func TestWeightsHold(t *testing.T) {
	a := Loaded{ID: "a", Work: 60_000, KV: 100_000, Fresh: true, Weight: Neutral}
	b := Loaded{ID: "b", KV: 100_000, Fresh: true, Weight: Neutral}
	changes := 0
	for i := range 200 {
		// b's work swings by ±10 % around a ratio that lies between two steps.
		b.Work = 44_000 + policies.Tokens(i%2)*9_000
		next := Weights([]Loaded{a, b})
		if next["b"] != b.Weight || next["a"] != a.Weight {
			changes++
		}
		a.Weight, b.Weight = next["a"], next["b"]
	}
	if changes > 2 {
		t.Errorf("weights changed %d times under a load that swings within a step", changes)
	}
}

func TestRatio(t *testing.T) {
	for _, c := range []struct{ served, learnt, want length.Ratio }{
		{4000, 0, 4000}, {4000, -1, 4000}, {4000, 4100, 4000}, {4000, 3870, 4000},
		{4000, 3200, 3225}, {4000, 5000, 5003}, {4000, 100, 505}, {4000, 1e9, 16000}, {0, 4000, 3920},
	} {
		if got := NextRatio(c.served, c.learnt); got != c.want {
			t.Errorf("NextRatio(%v, %v) = %v, want %v", c.served, c.learnt, got, c.want)
		}
	}
	// Noise of ±1 % around any value changes what is served at most once.
	for learnt := 1.1; learnt < 15; learnt *= 1.013 {
		served, changes := length.DefaultRatio, 0
		for i := range 50 {
			next := NextRatio(served, length.RatioOf(learnt*(1+0.01*float64(i%3-1))))
			if next != served {
				changes++
			}
			served = next
		}
		if changes > 1 {
			t.Errorf("learnt %.3f ± 1 %%: served ratio changed %d times", learnt, changes)
		}
	}
}
