package batch

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// fill does the work of a migration executor: it copies the KV bytes of a sequence from the blocks
// of its Table to the reservation's blocks, up to position computed, and fills in the ids up to
// ids.
func fill(to *Scheduler, r *Reservation, from *Scheduler, q *Sequence, ids, computed int) error {
	known, done := len(r.filled.ids), r.filled.computed
	t, err := from.Table(q, 0)
	if err != nil {
		return err
	}
	if ids > t.Length || computed > t.Computed {
		return fmt.Errorf("the sequence has %d ids, %d computed", t.Length, t.Computed)
	}
	size := to.Pool.BlockTokens
	for p := done; p < min(computed, len(r.Blocks())*size); p++ {
		copy(to.Pool.Slot(r.Blocks()[p/size], p%size), from.Pool.Slot(t.Blocks[p/size], p%size))
	}
	f, err := to.BeginFill(r, known, t.IDs[known:max(known, ids)], computed)
	if err != nil {
		return err
	}
	f.Read()
	to.EndFill(f)
	return nil
}

// checkBooks compares the reference counts of a scheduler with everything that may hold blocks:
// every reference has exactly one holder.
func checkBooks(t *testing.T, s *Scheduler, reservations map[string]*Reservation) {
	t.Helper()
	held := make([]int, s.Pool.Blocks)
	alone := make([]bool, s.Pool.Blocks)
	hold := func(blocks []kv.Block) {
		for _, b := range blocks {
			held[b]++
		}
	}
	for _, q := range slices.Concat(s.running, s.waiting, s.frozen) {
		hold(q.blocks)
	}
	reserved := 0
	for _, r := range reservations {
		hold(r.blocks)
		reserved += len(r.blocks)
		for i, b := range r.blocks {
			alone[b] = alone[b] || r.prefix == nil || i >= r.prefix.cached
		}
	}
	used := 0
	for b, n := range held {
		if got := s.blocks.References(kv.Block(b)); got != n {
			t.Fatalf("block %d has %d references and %d holders", b, got, n)
		}
		if n > 0 {
			used++
		}
		if alone[b] && n > 1 {
			t.Fatalf("reserved block %d also belongs to another reservation", b)
		}
	}
	if st := s.Stats(); st.UsedBlocks != used || st.Reserved != reserved {
		t.Fatalf("stats %+v, want %d used, %d reserved", st, used, reserved)
	}
}

// drain runs a scheduler until idle.
func drain(t *testing.T, s *Scheduler) {
	t.Helper()
	for n := 0; !s.Idle(); n++ {
		if n > 100_000 {
			t.Fatal("the scheduler does not come to rest")
		}
		for _, e := range s.Step().Events {
			if e.Sequence.Receiver != nil {
				e.Sequence.Receiver.Receive(e)
			}
		}
	}
}

// frozenPair returns a sequence frozen after n tokens and a scheduler to which it can migrate.
func frozenPair(t testing.TB, m *model.Model, c setup, r Request, n int) (from, to *Scheduler, q *Sequence) {
	from, to, q = c.scheduler(t, m), c.scheduler(t, m), NewSequence(r, c.Block)
	from.Add(q)
	for q.Output() < n {
		from.Step()
	}
	from.Settle()
	testkit.NoError(t, from.Freeze(q, 1))
	return from, to, q
}

// A wrong byte at any migrated position, and a missing or swapped block, change the text.
func TestWrongHandoverChangesText(t *testing.T) {
	m := newModel(t)
	r := Request{Prompt: prompt(9, 0, 1), MaxOutput: 12, IgnoreEOS: true}
	want := generateAlone(m, r)[4:]
	goOn := func(spoil func(*Scheduler, []kv.Block)) []model.Token {
		from, to, q := frozenPair(t, m, setup{Blocks: 24, Block: 4, Batch: 2, Tokens: 64}, r, 4)
		defer from.Pool.Close()
		defer to.Pool.Close()
		res := &Reservation{}
		testkit.NoError(t, to.Reserve(res, len(q.ids)))
		for i, b := range q.blocks {
			for j := range 4 {
				copy(to.Pool.Slot(res.Blocks()[i], j), from.Pool.Slot(b, j))
			}
		}
		spoil(to, res.Blocks())
		f, err := to.BeginFill(res, 0, q.ids, q.computed)
		testkit.NoError(t, err)
		f.Read()
		to.EndFill(f)
		got := &collector{}
		x, err := to.Adopt(res, Request{MaxOutput: 8, IgnoreEOS: true, Receiver: got})
		testkit.NoError(t, err)
		drain(t, to)
		if x.Output() != 8 || to.Stats().UsedBlocks != 0 {
			t.Fatalf("%d tokens, %d blocks still used", x.Output(), to.Stats().UsedBlocks)
		}
		return got.out
	}
	if got := goOn(func(*Scheduler, []kv.Block) {}); !slices.Equal(got, want) {
		t.Fatalf("the right blocks: %v, want %v", got, want)
	}
	for at := range 12 * 16 { // 9 + 4 ids, the last one not computed
		if got := goOn(func(s *Scheduler, b []kv.Block) { s.Pool.Slot(b[at/64], at/16%4)[at%16] ^= 1 << (at % 8) }); slices.Equal(got, want) {
			t.Errorf("a wrong byte %d at position %d changes nothing", at%16, at/16)
		}
	}
	if got := goOn(func(s *Scheduler, b []kv.Block) { clear(s.Pool.Slot(b[1], 2)) }); slices.Equal(got, want) {
		t.Error("a missing slot changes nothing")
	}
	if got := goOn(func(s *Scheduler, b []kv.Block) {
		for j := range 4 {
			copy(s.Pool.Slot(b[1], j), s.Pool.Slot(b[0], j))
		}
	}); slices.Equal(got, want) {
		t.Error("another block's bytes change nothing")
	}
}

// TestAdoptedAwaitsNoPrompts adds a long prompt at each step around the one at which a sequence is
// adopted: the adopted one has its token with the next step, which computes no prompts, and then
// one with every step, as the sequences that run here. A prompt loses one step.
func TestAdoptedAwaitsNoPrompts(t *testing.T) {
	const adoptedAt, last = 4, 12
	m := newModel(t)
	for promptAt := range last {
		s := setup{Blocks: 128, Block: 4, Batch: 8, Tokens: 16}.scheduler(t, m)
		add := func(n, output int) *Sequence {
			q := NewSequence(Request{Prompt: prompt(n, 0, n), MaxOutput: output, IgnoreEOS: true}, 4)
			s.Add(q)
			return q
		}
		moved, stays := add(9, 40), add(6, 40)
		s.Step()
		s.Settle()
		var r Reservation
		testkit.NoError(t, errors.Join(s.Freeze(moved, 1), s.Reserve(&r, 40), fill(s, &r, s, moved, 10, 9)))
		var adopted, long *Sequence
		lost := 0 // steps that the prompt waited
		for step := range last {
			if step == promptAt {
				long = add(100, 1)
			}
			if step == adoptedAt {
				q, err := s.Adopt(&r, Request{MaxOutput: 40, IgnoreEOS: true})
				testkit.NoError(t, err)
				adopted = q
			}
			waits := long != nil && long.Output() == 0
			st := s.Step()
			if waits && st.Prefill == 0 {
				lost++
			}
			if adopted != nil && adopted.Output() != step-adoptedAt+1 {
				t.Errorf("prompt at step %d: after %d steps the adopted sequence has %d tokens", promptAt, step-adoptedAt+1, adopted.Output())
			}
			if step == adoptedAt && st.Prefill > 0 || stays.Output() != step+2 {
				t.Errorf("prompt at step %d: step %d computes %d tokens of prompts; a sequence that runs has %d tokens", promptAt, step, st.Prefill, stays.Output())
			}
		}
		if (lost == 1) != (promptAt <= adoptedAt) || lost > 1 {
			t.Errorf("prompt at step %d: it waited for %d steps", promptAt, lost)
		}
	}
}
