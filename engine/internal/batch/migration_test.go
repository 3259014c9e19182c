package batch

import (
	"errors"
	"fmt"
	"math/rand/v2"
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

// continuedText is a text, together with the sequences that have generated it one after the other.
type continuedText struct {
	request Request
	output  *collector // written by all of the sequences
	at      int        // index of the scheduler that runs it
	q       *Sequence
	frozen  bool
	over    bool // dropped or aborted on purpose

	r    *Reservation // reservation at the target
	name string
	to   int
}

// Random loads run on two schedulers. Sequences are frozen, thawed, dropped, copied in rounds and
// adopted at random, with preemption on both sides: every text equals the model's own, and no block
// has too many or too few holders at any time.
func TestMovesAtRandom(t *testing.T) {
	m := newModel(t)
	moves, rounds, preemptions, shortages := 0, 0, uint64(0), 0
	seeds := testkit.Size(60, 150)
	for seed := range uint64(seeds) {
		rng := rand.New(rand.NewPCG(seed, 9))
		c := setup{Blocks: 16 + rng.IntN(40), Block: 1 + rng.IntN(8), Batch: 1 + rng.IntN(6)}
		c.Tokens = c.Batch + rng.IntN(24)
		c.NoCache = rng.IntN(4) == 0
		room := c.Blocks * c.Block
		ss := []*Scheduler{c.scheduler(t, m), c.scheduler(t, m)}
		reservations := []map[string]*Reservation{{}, {}}
		var stories []*continuedText
		pick := func(want func(*continuedText) bool) *continuedText {
			var l []*continuedText
			for _, x := range stories {
				if x.output.end == Unfinished && !x.over && want(x) {
					l = append(l, x)
				}
			}
			if len(l) == 0 {
				return nil
			}
			return l[rng.IntN(len(l))]
		}
		abandon := func(x *continuedText) { // abandons the migration, not the text
			if x.r != nil {
				ss[x.to].Release(x.r)
				delete(reservations[x.to], x.name)
				x.r = nil
			}
		}
		for op := range 600 {
			switch k := rng.IntN(12); {
			case k < 2 && len(stories) < 25:
				n := 1 + rng.IntN(room/4)
				x := &continuedText{output: &collector{}, at: rng.IntN(2)}
				x.request = Request{
					Prompt: prompt(n, rng.IntN(n+1), rng.IntN(3)), MaxOutput: 1 + rng.IntN(room-n), IgnoreEOS: rng.IntN(4) > 0,
					Salt: uint64(rng.IntN(2)), Receiver: x.output,
				}
				x.q = NewSequence(x.request, c.Block)
				stories = append(stories, x)
				ss[x.at].Add(x.q)
			case k == 2:
				if x := pick(func(x *continuedText) bool { return x.r == nil }); x != nil {
					x.r, x.to, x.name = &Reservation{}, rng.IntN(2), fmt.Sprint(op)
					if err := ss[x.to].Reserve(x.r, len(x.q.ids)+rng.IntN(c.Block*2)); err != nil {
						if !errors.Is(err, ErrFull) {
							t.Fatal(err)
						}
						shortages++
						x.r = nil
						break
					}
					reservations[x.to][x.name] = x.r
				}
			case k == 3: // a round: the positions computed so far
				if x := pick(func(x *continuedText) bool { return x.r != nil }); x != nil {
					upto := max(x.r.filled.computed, min(x.q.settled.computed, len(x.r.Blocks())*c.Block))
					if fill(ss[x.to], x.r, ss[x.at], x.q, upto, upto) == nil {
						rounds++
					}
				}
			case k == 4:
				if x := pick(func(x *continuedText) bool { return !x.frozen }); x != nil {
					ss[x.at].Settle()
					if err := ss[x.at].Freeze(x.q, 7); err == nil {
						x.frozen = true
					} else if !errors.Is(err, ErrWaiting) {
						t.Fatal(err)
					}
				}
			case k == 5:
				if x := pick(func(x *continuedText) bool { return x.frozen }); x != nil {
					ss[x.at].Thaw(x.q)
					x.frozen = false
				}
			case k == 6: // the last round and the adoption
				if x := pick(func(x *continuedText) bool { return x.frozen && x.r != nil }); x != nil {
					// The sequence may have lost its blocks since the rounds, and may be
					// recomputing them.
					if x.q.computed < x.r.filled.computed || ss[x.to].Reserve(x.r, len(x.q.ids)) != nil {
						abandon(x)
						break
					}
					computed := x.q.computed - rng.IntN(2)*rng.IntN(x.q.computed-x.r.filled.computed+1)
					testkit.NoError(t, fill(ss[x.to], x.r, ss[x.at], x.q, len(x.q.ids), computed))
					left := x.request
					left.Prompt, left.MaxOutput = nil, x.request.MaxOutput-len(x.output.out)
					q, err := ss[x.to].Adopt(x.r, left)
					testkit.NoError(t, err)
					x.q.Receiver = nil
					testkit.NoError(t, ss[x.at].Drop(x.q))
					delete(reservations[x.to], x.name)
					x.r, x.q, x.at, x.frozen = nil, q, x.to, false
					moves++
				}
			case k == 7 && rng.IntN(3) == 0:
				if x := pick(func(x *continuedText) bool { return true }); x != nil {
					abandon(x)
					ss[x.at].Abort(x.q)
					x.over = true
				}
			case k == 8:
				if x := pick(func(x *continuedText) bool { return x.r != nil }); x != nil {
					abandon(x)
				}
			default:
				at := rng.IntN(2)
				st := ss[at].Step()
				if len(ss[at].running)+len(ss[at].frozen) > c.Batch {
					t.Fatalf("seed %d: %d running and %d frozen exceed a batch of %d", seed, len(ss[at].running), len(ss[at].frozen), c.Batch)
				}
				for _, e := range st.Events {
					if e.Sequence.Receiver != nil {
						e.Sequence.Receiver.Receive(e)
					}
				}
				for _, x := range stories { // a migration ends with its request
					if x.output.end != Unfinished {
						abandon(x)
					}
				}
			}
			for i := range ss {
				checkBooks(t, ss[i], reservations[i])
			}
		}
		for _, x := range stories {
			abandon(x)
		}
		for i, s := range ss {
			s.ThawAll(7)
			drain(t, s)
			checkBooks(t, s, reservations[i])
			if st := s.Stats(); st.UsedBlocks+st.Reserved+st.Frozen != 0 {
				t.Fatalf("seed %d: leaked: %+v", seed, st)
			}
			preemptions += s.Stats().Preemptions
		}
		for i, x := range stories {
			want := generateAlone(m, x.request)
			if x.over {
				want = want[:min(len(want), len(x.output.out))]
			} else if x.output.end == Unfinished {
				t.Fatalf("seed %d: text %d never ended", seed, i)
			}
			if !slices.Equal(x.output.out, want) {
				t.Fatalf("seed %d: text %d:\n got %v\nwant %v", seed, i, x.output.out, want)
			}
		}
	}
	t.Logf("%d moves, %d rounds, %d preemptions, %d refused reservations", moves, rounds, preemptions, shortages)
	if moves < seeds || rounds < 2*seeds || preemptions < 2*uint64(seeds) || shortages < seeds*2/3 {
		t.Error("too little happened: the test proves too little")
	}
}

// frozenPair returns a sequence frozen after n tokens and a scheduler to which it can migrate.
func frozenPair(t testing.TB, m *model.Model, r Request, n int) (from, to *Scheduler, q *Sequence) {
	c := setup{Blocks: 24, Block: 4, Batch: 2, Tokens: 64}
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
		from, to, q := frozenPair(t, m, r, 4)
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
