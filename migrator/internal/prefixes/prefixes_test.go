package prefixes

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// TestAdd compares random prompts that share beginnings with a search through all prompts before.
func TestAdd(t *testing.T) {
	hits := 0
	for seed := range uint64(testkit.Size(20, 200)) {
		rng := rand.New(rand.NewPCG(seed, 15))
		x := New(1 << 20)
		type sent struct {
			model string
			ids   []uint32
		}
		var all []sent
		for range 60 {
			s := sent{model: fmt.Sprint("m", rng.IntN(2))}
			if len(all) > 0 && rng.IntN(3) > 0 {
				before := all[rng.IntN(len(all))].ids
				s.ids = slices.Clone(before[:rng.IntN(len(before)+1)])
			}
			for range rng.IntN(300) {
				s.ids = append(s.ids, rng.Uint32N(3))
			}
			want := 0
			for _, b := range all {
				n := 0
				for b.model == s.model && n < min(len(b.ids), len(s.ids)) && b.ids[n] == s.ids[n] {
					n++
				}
				want = max(want, min(n, len(s.ids)-1)/blockTokens*blockTokens)
			}
			if got := x.Add(s.model, s.ids); got != policies.Tokens(max(want, 0)) {
				t.Fatalf("seed %d: %d of %d tokens known, want %d", seed, got, len(s.ids), want)
			}
			if want > 0 {
				hits++
			}
			all = append(all, s)
		}
	}
	if hits < 100 {
		t.Error("few prompts shared a beginning: the test proves too little")
	}
}

// TestCapacity checks that the least recently used prompt is forgotten first.
func TestCapacity(t *testing.T) {
	x := New(10 * blockTokens)
	prompt := func(first uint32) []uint32 {
		ids := make([]uint32, 4*blockTokens+1)
		ids[0] = first
		return ids
	}
	x.Add("m", prompt(1))
	x.Add("m", prompt(2))
	x.Add("m", prompt(1))
	x.Add("m", prompt(3)) // evicts some of 2
	if a, b := x.Add("m", prompt(1)), x.Add("m", prompt(2)); a != 4*blockTokens || b != 0 {
		t.Errorf("%d of the prompt used last and %d of the one used first are known", a, b)
	}
}

func BenchmarkAdd(b *testing.B) {
	x, ids := New(1<<20), make([]uint32, 8192)
	b.ReportAllocs()
	for i := uint32(0); b.Loop(); i++ {
		ids[4096] = i
		x.Add("m", ids)
	}
}

// TestClear checks that a cleared index knows nothing, and fills up again.
func TestClear(t *testing.T) {
	x := New(4 * blockTokens)
	prompt := make([]uint32, 3*blockTokens)
	x.Add("m", prompt)
	x.Clear()
	if first, second := x.Add("m", prompt), x.Add("m", prompt); first != 0 || second != 2*blockTokens || len(x.blocks) != x.used.Len() {
		t.Errorf("%d tokens known, then %d; %d blocks, %d in order of use", first, second, len(x.blocks), x.used.Len())
	}
}
