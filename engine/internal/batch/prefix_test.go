package batch

import (
	"errors"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// pin pins a prefix in a new reservation.
func pin(s *Scheduler, ids []model.Token, salt uint64, reserve bool) (*Reservation, int, error) {
	r := &Reservation{}
	cached, err := s.PinPrefix(r, NewSequence(Request{Prompt: ids, Salt: salt}, s.Pool.BlockTokens), reserve)
	return r, cached, err
}

// copyBlocks does the work of a migrator: it copies the blocks from index from to before index to.
func copyBlocks(to *Scheduler, in *Reservation, source *Scheduler, out *Reservation, from, end int) {
	for i := from; i < end; i++ {
		for slot := range to.Pool.BlockTokens {
			copy(to.Pool.Slot(in.Blocks()[i], slot), source.Pool.Slot(out.Blocks()[i], slot))
		}
	}
}

// answer runs a request alone and returns its text and how much of its prompt was cached.
func answer(t *testing.T, s *Scheduler, r Request) ([]model.Token, int) {
	t.Helper()
	out := &collector{}
	r.Receiver = out
	q := NewSequence(r, s.Pool.BlockTokens)
	s.Add(q)
	drain(t, s)
	return out.out, q.cached
}

// firstStored is a CacheObserver that notes the first and the last block of the first event.
type firstStored [2]int

func (f *firstStored) BlocksStored(_ *Sequence, first, end int) {
	if f[0] < 0 {
		*f = firstStored{first, end}
	}
}
func (*firstStored) BlockRemoved(kv.Hash) {}
func (*firstStored) CacheCleared()        {}

// A prefix that one scheduler has computed is found by a request of another one after a pull, whose text
// depends on the bytes that were copied: with one of them changed it is another text.
func TestPrefixPull(t *testing.T) {
	m := newModel(t)
	c := setup{Blocks: 32, Block: 4, Batch: 4, Tokens: 64}
	request := Request{Prompt: prompt(41, 41, 0), MaxOutput: 12, IgnoreEOS: true}
	longer := request
	longer.Prompt = slices.Concat(request.Prompt, generateAlone(m, request), prompt(5, 0, 2))
	want := generateAlone(m, longer)
	for _, x := range []struct {
		name string
		salt uint64 // of the pull
		have int    // tokens that the target has computed before
		flip bool
		hit  int
	}{
		{name: "pulled", hit: 52},
		{name: "the target has some", have: 17, hit: 52},
		{name: "a byte is wrong", flip: true, hit: 52},
		{name: "another tenant's", salt: 1},
	} {
		t.Run(x.name, func(t *testing.T) {
			source, target := c.scheduler(t, m), c.scheduler(t, m)
			answer(t, source, request)
			if x.have > 0 {
				answer(t, target, Request{Prompt: request.Prompt[:x.have], MaxOutput: 1})
			}
			out, held, err := pin(source, longer.Prompt, 0, false)
			testkit.NoError(t, err)
			in, cached, err := pin(target, longer.Prompt, x.salt, true)
			testkit.NoError(t, err)
			if held != 52 || cached != x.have/4*4 {
				t.Fatalf("%d held, %d cached", held, cached)
			}
			copyBlocks(target, in, source, out, cached/4, held/4)
			stored := &firstStored{-1, -1}
			target.Cache = stored
			if x.flip {
				target.Pool.Slot(in.Blocks()[7], 2)[5] ^= 1
			}
			testkit.NoError(t, target.CommitPrefix(in, held))
			if *stored != (firstStored{cached / 4, held / 4}) {
				t.Errorf("the cache says that blocks %v were stored, of which it had %d", *stored, cached/4)
			}
			source.Release(out)
			for _, s := range []*Scheduler{source, target} {
				if st := s.Stats(); st.UsedBlocks+st.Reserved != 0 {
					t.Errorf("leaked: %+v", st)
				}
			}
			got, hit := answer(t, target, longer)
			if hit != x.hit || slices.Equal(got, want) == x.flip {
				t.Errorf("%d tokens were cached, want %d; text %v, alone %v", hit, x.hit, got, want)
			}
		})
	}
}

// A pull takes no block that a running sequence needs, and what is pinned is not evicted.
func TestPrefixPullLeavesRoom(t *testing.T) {
	m := newModel(t)
	s := setup{Blocks: 16, Block: 4, Batch: 4, Tokens: 64}.scheduler(t, m)
	first := Request{Prompt: prompt(24, 24, 0), MaxOutput: 1}
	answer(t, s, first) // 6 blocks are cached
	kept, cached, err := pin(s, first.Prompt, 0, false)
	if err != nil || cached != 24 {
		t.Fatal(cached, err)
	}
	running := NewSequence(Request{Prompt: prompt(28, 0, 1), MaxOutput: 100, IgnoreEOS: true}, 4)
	s.Add(running)
	s.Step() // 7 blocks; the next token needs an eighth
	if r, _, err := pin(s, prompt(12, 0, 3), 0, true); !errors.Is(err, ErrFull) || r.Blocks() != nil {
		t.Errorf("3 of 3 free blocks: %v, %v", r.Blocks(), err)
	}
	two, _, err := pin(s, prompt(11, 0, 3), 0, true)
	if err != nil || len(two.Blocks()) != 2 {
		t.Errorf("2 of 3 free blocks: %v, %v", two.Blocks(), err)
	}
	s.Step()
	s.Release(two)
	answered := NewSequence(Request{Prompt: prompt(30, 0, 4), MaxOutput: 1}, 4)
	s.Add(answered) // waits for the blocks of running
	s.Abort(running)
	drain(t, s)
	if answered.state != ended || s.stats.Preemptions > 0 {
		t.Errorf("%d preemptions", s.stats.Preemptions)
	}
	s.Release(kept)
	if got, hit := answer(t, s, first); hit != 20 || !slices.Equal(got, generateAlone(m, first)) {
		t.Errorf("%d tokens are cached, want the five whole blocks before the last token", hit)
	}
}

// A reservation for a prefix is none for a request, and the other way round.
func TestPrefixReservations(t *testing.T) {
	s := setup{Blocks: 16, Block: 4, Batch: 4, Tokens: 64}.scheduler(t, newModel(t))
	r, _, err := pin(s, prompt(9, 9, 0), 0, true)
	testkit.NoError(t, err)
	if len(r.Blocks()) != 2 {
		t.Errorf("%d blocks for two whole ones", len(r.Blocks()))
	}
	if _, err := s.PinPrefix(r, NewSequence(Request{Prompt: prompt(9, 9, 0)}, 4), true); !errors.Is(err, ErrInUse) {
		t.Errorf("pinned twice: %v", err)
	}
	if err := s.Reserve(r, 20); !errors.Is(err, ErrPrefix) {
		t.Errorf("reserved: %v", err)
	}
	if _, err := s.BeginFill(r, 0, prompt(4, 4, 0), 4); !errors.Is(err, ErrPrefix) {
		t.Errorf("filled: %v", err)
	}
	if _, err := s.Adopt(r, Request{MaxOutput: 1}); !errors.Is(err, ErrPrefix) {
		t.Errorf("adopted: %v", err)
	}
	for _, tokens := range []int{-1, 9} {
		if err := s.CommitPrefix(r, tokens); err == nil {
			t.Errorf("%d tokens were committed", tokens)
		}
	}
	s.Release(r)
	if err := s.CommitPrefix(r, 8); !errors.Is(err, ErrReleased) {
		t.Errorf("committed after its release: %v", err)
	}
	ordinary := &Reservation{}
	testkit.NoError(t, s.Reserve(ordinary, 8))
	if err := s.CommitPrefix(ordinary, 8); err == nil {
		t.Error("a request's reservation was committed")
	}
	s.Release(ordinary)
	if _, cached, err := pin(s, prompt(9, 9, 0), 0, false); err != nil || cached != 0 {
		t.Errorf("what was released is cached: %d, %v", cached, err)
	}
	none := setup{Blocks: 16, Block: 4, Batch: 4, Tokens: 64, NoCache: true}.scheduler(t, newModel(t))
	if _, _, err := pin(none, prompt(9, 9, 0), 0, true); !errors.Is(err, ErrNoPrefixCache) {
		t.Errorf("without a prefix cache: %v", err)
	}
}

// After a migration the target's cache has what it was sent, also of a request that ends, is aborted, migrates on or
// is preempted before the target has had the time to register it: the next turn finds it.
func TestAdoptedPrefixIsFound(t *testing.T) {
	m := newModel(t)
	c := setup{Blocks: 600, Block: 4, Batch: 4, Tokens: 2048}
	request := Request{Prompt: prompt(1601, 1601, 0), MaxOutput: 60, IgnoreEOS: true, Salt: 3}
	for name, end := range map[string]func(t *testing.T, s *Scheduler, q *Sequence){
		"its output ends": func(t *testing.T, s *Scheduler, q *Sequence) { drain(t, s) },
		"its client goes": func(t *testing.T, s *Scheduler, q *Sequence) { s.Step(); s.Abort(q) },
		"it moves on": func(t *testing.T, s *Scheduler, q *Sequence) {
			s.Step()
			s.Settle()
			testkit.NoError(t, s.Freeze(q, 1))
			testkit.NoError(t, s.Drop(q))
		},
		"it is preempted": func(t *testing.T, s *Scheduler, q *Sequence) { s.Step(); s.SetFull(0); s.EndFull(); s.Abort(q) },
	} {
		t.Run(name, func(t *testing.T) {
			source, target, q := frozenPair(t, m, c, request, 3)
			r := &Reservation{}
			testkit.NoError(t, target.Reserve(r, len(q.ids)))
			testkit.NoError(t, fill(target, r, source, q, len(q.ids), q.computed))
			left := request
			left.MaxOutput = 2
			adopted, err := target.Adopt(r, left)
			testkit.NoError(t, err)
			ids := slices.Clone(q.ids)
			end(t, target, adopted)
			next := Request{Prompt: append(ids, 5, 6, 7, 8, 9), MaxOutput: 1, Salt: 3}
			if _, hit := answer(t, target, next); hit != 1604 {
				t.Errorf("the next turn finds %d tokens of %d", hit, len(ids))
			}
		})
	}
}
