package batch

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestLengthsScheduleAsContent drives a scheduler of texts and one of lengths with the same random
// requests: every step must be the same, with prefix hits, preemptions, aborts and full batches.
func TestLengthsScheduleAsContent(t *testing.T) {
	m := newModel(t)
	var hits, preemptions uint64
	moves := 0
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 7))
		c := setup{Blocks: 12 + rng.IntN(40), Block: 4, Batch: 1 + rng.IntN(6), NoCache: rng.IntN(4) == 0}
		c.Tokens = c.Batch + rng.IntN(24)
		texts := c.scheduler(t, m)
		lengths, err := New(Config{
			Pool: &kv.Pool{Layout: kv.Layout{Blocks: c.Blocks, BlockTokens: c.Block, SlotBytes: 16, Regions: 1}},
			Time: func(it cost.Iteration) float64 { return texts.Profile.Seconds(it) }, MaxBatch: c.Batch, MaxTokens: c.Tokens, NoPrefixCache: c.NoCache,
		})
		testkit.NoError(t, err)
		pairs := map[*Sequence]*Sequence{}
		var all []*Sequence
		for step := range 400 {
			for step < 300 && rng.IntN(4) == 0 {
				most := c.Blocks * c.Block
				r := Request{MaxOutput: 1 + rng.IntN(20), IgnoreEOS: true}
				n := 1 + rng.IntN(min(40, most-r.MaxOutput))
				r.Prompt = prompt(n, rng.IntN(n), 1+len(all))
				q := NewSequence(r, c.Block)
				x := NewLength(r, n, clearTop(q.chain))
				pairs[x] = q
				all = append(all, x)
				texts.Add(q)
				lengths.Add(x)
			}
			if rng.IntN(40) == 0 && len(all) > 0 {
				x := all[rng.IntN(len(all))]
				lengths.Abort(x)
				texts.Abort(pairs[x])
			}
			if rng.IntN(15) == 0 && len(all) > 0 {
				// One moves, to the scheduler where it is: it is dropped and adopted.
				i := rng.IntN(len(all))
				texts.Settle()
				lengths.Settle()
				if x, q, ok := move(t, texts, lengths, pairs[all[i]], all[i]); ok {
					delete(pairs, all[i])
					all[i], pairs[x] = x, q
					moves++
				}
			}
			a, b := texts.Step(), lengths.Step()
			if a.Iteration != b.Iteration || a.Seconds != b.Seconds || len(a.Events) != len(b.Events) {
				t.Fatalf("seed %d, step %d: %+v with texts, %+v with lengths", seed, step, a, b)
			}
			for i, e := range a.Events {
				if f := b.Events[i]; pairs[f.Sequence] != e.Sequence || f.Finish != e.Finish || f.Cached != e.Cached || f.Sequence.Length() != e.Sequence.Length() {
					t.Fatalf("seed %d, step %d, event %d: %+v with texts, %+v with lengths", seed, step, i, e, f)
				}
			}
			if x, y := texts.Stats(), lengths.Stats(); x != y {
				t.Fatalf("seed %d, step %d: %+v with texts, %+v with lengths", seed, step, x, y)
			}
		}
		hits += lengths.Stats().PrefixHits
		preemptions += lengths.Stats().Preemptions
	}
	if hits == 0 || preemptions == 0 || moves == 0 {
		t.Errorf("%d prefix hits, %d preemptions and %d moves: the test compares too little", hits, preemptions, moves)
	}
}

// clearTop returns the hashes without the bit that NewLength reserves.
func clearTop(chain []kv.Hash) []kv.Hash {
	out := make([]kv.Hash, len(chain))
	for i, h := range chain {
		out[i] = h &^ ownHash
	}
	return out
}

// move drops a running sequence in both schedulers and adopts it again; false if it does not run or
// finds no room.
func move(t *testing.T, texts, lengths *Scheduler, q, x *Sequence) (*Sequence, *Sequence, bool) {
	t.Helper()
	a, b := texts.Freeze(q, 1), lengths.Freeze(x, 1)
	if !errors.Is(a, b) {
		t.Fatalf("freezing: %v with texts, %v with lengths", a, b)
	}
	if a != nil {
		return nil, nil, false
	}
	var r, o Reservation
	a, b = texts.Reserve(&r, q.Length()), lengths.Reserve(&o, x.Length())
	if !errors.Is(a, b) {
		t.Fatalf("reserving: %v with texts, %v with lengths", a, b)
	}
	if a != nil {
		texts.Thaw(q)
		lengths.Thaw(x)
		return nil, nil, false
	}
	f, err := texts.BeginFill(&r, 0, q.ids, len(q.ids)-1)
	testkit.NoError(t, err)
	testkit.NoError(t, f.Read())
	texts.EndFill(f)
	rest := Request{MaxOutput: q.MaxOutput - q.Output(), IgnoreEOS: true}
	texts.Abort(q)
	lengths.Abort(x)
	q2, err := texts.Adopt(&r, rest)
	testkit.NoError(t, err)
	x2, err := lengths.AdoptLength(&o, rest, x)
	testkit.NoError(t, err)
	return x2, q2, true
}
