package loadtracker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// TestBegin compares random prompts that share beginnings, and whose answers were recorded, with a search through
// all sequences before.
func TestBegin(t *testing.T) {
	hits, ofAnswers := 0, 0
	for seed := range uint64(testkit.Size(20, 200)) {
		rng := rand.New(rand.NewPCG(seed, 15))
		x := NewPrefixes(1 << 20)
		type sent struct {
			root   prefix.Hash
			ids    []uint32 // the answer included
			prompt int
		}
		var all []sent
		for range 60 {
			s := sent{root: prefix.Root("m", fmt.Sprint(rng.IntN(2)), "")}
			if len(all) > 0 && rng.IntN(3) > 0 {
				before := all[rng.IntN(len(all))].ids
				s.ids = slices.Clone(before[:rng.IntN(len(before)+1)])
			}
			for range rng.IntN(300) {
				s.ids = append(s.ids, rng.Uint32N(3))
			}
			want, inAnswer := 0, false
			for _, b := range all {
				n := 0
				for b.root == s.root && n < min(len(b.ids), len(s.ids)) && b.ids[n] == s.ids[n] {
					n++
				}
				if whole := max(min(n, len(s.ids)-1), 0) / blockTokens * blockTokens; whole > want {
					want, inAnswer = whole, whole > b.prompt
				}
			}
			if got := x.Match(s.root, s.ids); got != policies.Tokens(want) {
				t.Fatalf("seed %d: %d of %d tokens match, want %d", seed, got, len(s.ids), want)
			}
			var c Chain
			if got := x.Begin(&c, s.root, s.ids); got != policies.Tokens(want) {
				t.Fatalf("seed %d: %d of %d tokens known, want %d", seed, got, len(s.ids), want)
			}
			s.prompt = len(s.ids)
			for range rng.IntN(4) {
				var more []uint32
				for range rng.IntN(90) {
					more = append(more, rng.Uint32N(3))
				}
				x.Extend(&c, more...)
				s.ids = append(s.ids, more...)
			}
			if want > 0 {
				hits++
			}
			if inAnswer {
				ofAnswers++
			}
			all = append(all, s)
		}
	}
	if hits < 100 || ofAnswers < 20 {
		t.Errorf("%d prompts shared a beginning, %d an answer: the test proves too little", hits, ofAnswers)
	}
}

// TestCapacity checks that the least recently used prompt is forgotten first.
func TestCapacity(t *testing.T) {
	x := NewPrefixes(10 * blockTokens)
	add := func(first uint32) policies.Tokens {
		ids := make([]uint32, 4*blockTokens+1)
		ids[0] = first
		return x.Begin(new(Chain), 1, ids)
	}
	add(1)
	add(2)
	add(1)
	add(3) // evicts the end of 2
	if a, b := add(1), add(2); a != 4*blockTokens || b != 2*blockTokens {
		t.Errorf("%d of the prompt used last and %d of the one used first are known", a, b)
	}
	x.SetCapacity(blockTokens)
	if n := x.Status().Blocks; n != 1 {
		t.Errorf("%d blocks in a cache of one", n)
	}
}

// TestForget checks that an engine that has started anew holds nothing, and fills up again.
func TestForget(t *testing.T) {
	x := NewPrefixes(4 * blockTokens)
	ids := make([]uint32, 3*blockTokens)
	x.Begin(new(Chain), 1, ids)
	x.Forget()
	if first, second := x.Begin(new(Chain), 1, ids), x.Begin(new(Chain), 1, ids); first != 0 || second != 2*blockTokens {
		t.Errorf("%d tokens known, then %d", first, second)
	}
	if s := x.Status(); s.Source != OwnPrompts || s.Blocks != 3 || s.Queries != 9*blockTokens || s.Hits != 2*blockTokens {
		t.Errorf("%+v", s)
	}
}

// TestEvents checks that the engine's events count while they arrive, and what the engine was sent counts before
// and after.
func TestEvents(t *testing.T) {
	x := NewPrefixes(1 << 16)
	ids := make([]uint32, 1024)
	root := prefix.Root("m", "", "")
	steps := prefix.AppendSteps(nil, root, ids)
	want := func(what string, source PrefixSource, tokens policies.Tokens) {
		t.Helper()
		if got := x.Status().Source; got != source {
			t.Errorf("%s: the source is %v, want %v", what, got, source)
		}
		if got := x.MatchSteps(steps); got != tokens {
			t.Errorf("%s: %d tokens, want %d", what, got, tokens)
		}
		if got := x.Match(root, ids); min(got, 512) != min(tokens, 512) {
			t.Errorf("%s: %d tokens by ids, want %d", what, got, tokens)
		}
	}
	var summary prefix.Summary
	version := uint64(0)
	changed := func(what string, tokens policies.Tokens) {
		t.Helper()
		encoded, now := x.Summary(version)
		if again, same := x.Summary(now); now == version || again != nil || same != now {
			t.Errorf("%s: summary %d after %d, then %d", what, now, version, same)
		}
		testkit.NoError(t, summary.UnmarshalBinary(encoded))
		if got := summary.MatchSteps(steps); got != tokens {
			t.Errorf("%s: the summary has %d tokens, want %d", what, got, tokens)
		}
		version = now
	}
	want("nothing sent", NoSource, 0)
	changed("nothing sent", 0)
	x.Begin(new(Chain), root, ids)
	want("sent", OwnPrompts, 1024)
	changed("sent", 1024)
	x.SetLive(true)
	want("no event yet", EngineEvents, 0)
	changed("no event yet", 0)
	block := prefix.Stored{Hashes: []uint64{1, 2}, Tokens: ids, BlockTokens: 512, Root: root}
	x.Store(&block)
	want("stored", EngineEvents, 1024)
	changed("stored", 1024)
	x.Remove(prefix.Removed{Hashes: []uint64{2}})
	want("removed", EngineEvents, 512)
	changed("removed", 512)
	x.Forget()
	want("the engine's start is not an event", EngineEvents, 512)
	x.Clear()
	want("cleared", EngineEvents, 0)
	x.Begin(new(Chain), root, ids)
	x.SetLive(false)
	want("no events any more", OwnPrompts, 1024)
	changed("no events any more", 1024)
}

// TestExtendAllocates checks that a token costs no memory.
func TestExtendAllocates(t *testing.T) {
	x := NewPrefixes(1 << 12)
	var c Chain
	x.Begin(&c, 1, make([]uint32, 100))
	id := uint32(0)
	for range 1 << 13 { // until blocks are forgotten
		id++
		x.Extend(&c, id)
	}
	if n := testing.AllocsPerRun(1000, func() { id++; x.Extend(&c, id) }); n > 0.1 {
		t.Errorf("%v allocations a token", n)
	}
}

func BenchmarkBegin(b *testing.B) {
	x, ids := NewPrefixes(1<<20), make([]uint32, 8192)
	b.ReportAllocs()
	var c Chain
	for i := uint32(0); b.Loop(); i++ {
		ids[4096] = i
		x.Begin(&c, 1, ids)
	}
}

func BenchmarkExtend(b *testing.B) {
	x := NewPrefixes(1 << 20)
	var c Chain
	x.Begin(&c, 1, make([]uint32, 64))
	b.ReportAllocs()
	for i := uint32(0); b.Loop(); i++ {
		x.Extend(&c, i)
	}
}
