package batch

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// continuedText is a text, together with the sequences that have generated it one after the other.
type continuedText struct {
	request Request
	output  *collector // written by all of the sequences
	at      int        // index of the scheduler that runs it
	q       *Sequence
	frozen  bool
	over    bool // dropped or aborted on purpose

	r    *Reservation // at the target of its migration
	name string
	to   int
}

// pull is a prefix that one scheduler gets from the other one.
type pull struct {
	name           string
	to             int
	in, out        *Reservation
	cached, tokens int
}

// pair is two schedulers between which texts and prefixes move at random.
type pair struct {
	t     *testing.T
	rng   *rand.Rand
	c     setup
	s     [2]*Scheduler
	seen  [2]*mirror
	held  [2]map[string]*Reservation
	texts []*continuedText
	pulls []pull
	count map[string]int // of what has happened
}

func newPair(t *testing.T, m *model.Model, seed uint64, count map[string]int) *pair {
	p := &pair{t: t, rng: rand.New(rand.NewPCG(seed, 9)), count: count}
	p.c = setup{Blocks: 8 + p.rng.IntN(48), Block: 1 + p.rng.IntN(8), Batch: 1 + p.rng.IntN(6), NoCache: p.rng.IntN(4) == 0}
	p.c.Tokens = p.c.Batch + p.rng.IntN(24)
	for i := range p.s {
		p.s[i], p.seen[i], p.held[i] = p.c.scheduler(t, m), newMirror(t, p.c.Block), map[string]*Reservation{}
		p.s[i].Cache = p.seen[i]
	}
	return p
}

// TestRandomPair runs random loads on two schedulers with small pools. Sequences are aborted, frozen, thawed, dropped,
// copied in rounds and adopted, prefixes are pulled, and caches reset, with preemption and eviction on both sides. Every
// text equals the model's own; no block has too many or too few holders at any time; no step exceeds the limits; and
// the events of a cache agree with its contents.
func TestRandomPair(t *testing.T) {
	m := newModel(t)
	count := map[string]int{}
	seeds := testkit.Size(60, 200)
	for seed := range uint64(seeds) {
		p := newPair(t, m, seed, count)
		for op := range 600 {
			p.act(op)
			for i, s := range p.s {
				checkBooks(t, s, p.held[i])
			}
			if t.Failed() {
				t.Fatalf("seed %d, operation %d: %+v", seed, op, p.c)
			}
		}
		p.settle()
		for i, x := range p.texts {
			want := generateAlone(m, x.request)
			if x.over {
				want = want[:min(len(want), len(x.output.out))]
			} else if x.output.end == Unfinished {
				t.Fatalf("seed %d: text %d never ended", seed, i)
			}
			if !slices.Equal(x.output.out, want) {
				t.Fatalf("seed %d: text %d of %+v:\n got %v\nwant %v", seed, i, p.c, x.output.out, want)
			}
		}
	}
	t.Log(count)
	for what, least := range map[string]int{
		"moves": seeds, "rounds": 2 * seeds, "preemptions": 2 * seeds, "full": seeds * 2 / 3, "forecasts": 50 * seeds,
		"commits": seeds, "hits": 20 * seeds, "stored twice": seeds / 2, "removed": 5 * seeds, "resets": seeds / 2, "refused resets": seeds / 2,
	} {
		if count[what] < least {
			t.Errorf("%d %s, want %d: the test proves too little", count[what], what, least)
		}
	}
}

// act does one random thing.
func (p *pair) act(op int) {
	s, at := p.s, p.rng.IntN(2)
	switch k := p.rng.IntN(18); {
	case k < 2 && len(p.texts) < 30:
		p.add(at)
	case k < 4:
		if x := p.pick(func(x *continuedText) bool { return x.r == nil }); x != nil {
			p.reserve(x, at, op)
		}
	case k == 4: // a round: the positions computed so far
		if x := p.pick(func(x *continuedText) bool { return x.r != nil }); x != nil {
			upto := max(x.r.filled.computed, min(x.q.settled.computed, len(x.r.Blocks())*p.c.Block))
			if fill(s[x.to], x.r, s[x.at], x.q, upto, upto) == nil {
				p.count["rounds"]++
			}
		}
	case k == 5:
		if x := p.pick(func(x *continuedText) bool { return !x.frozen }); x != nil {
			s[x.at].Settle()
			err := s[x.at].Freeze(x.q, 7)
			if x.frozen = err == nil; err != nil && !errors.Is(err, ErrWaiting) {
				p.t.Error(err)
			}
		}
	case k == 6 && p.rng.IntN(3) == 0:
		if x := p.pick(func(x *continuedText) bool { return x.frozen }); x != nil {
			s[x.at].Thaw(x.q)
			x.frozen = false
		}
	case k < 9:
		if x := p.pick(func(x *continuedText) bool { return x.frozen && x.r != nil }); x != nil {
			p.adopt(x)
		}
	case k == 9 && p.rng.IntN(3) == 0:
		if x := p.pick(func(x *continuedText) bool { return true }); x != nil {
			p.abandon(x)
			s[x.at].Abort(x.q)
			x.over = true
		}
	case k == 10 && p.rng.IntN(3) == 0:
		if x := p.pick(func(x *continuedText) bool { return x.r != nil }); x != nil {
			p.abandon(x)
		}
	case k == 11:
		p.pin(at, op)
	case k == 12 && len(p.pulls) > 0:
		p.endPull(p.rng.IntN(len(p.pulls)), p.rng.IntN(3) > 0)
	case k == 13 && p.rng.IntN(3) == 0:
		if s[at].ResetCache(p.rng.IntN(2) == 0) {
			p.count["resets"]++
		} else {
			p.count["refused resets"]++
		}
	default:
		p.step(at)
	}
}

// add starts a text. Some need most of the pool.
func (p *pair) add(at int) {
	room := p.c.Blocks * p.c.Block
	n := 1 + p.rng.IntN(max(1, room/4))
	if p.rng.IntN(5) == 0 {
		n = 1 + p.rng.IntN(room-1)
	}
	x := &continuedText{output: &collector{}, at: at}
	x.request = Request{
		Prompt: prompt(n, p.rng.IntN(n+1), p.rng.IntN(3)), MaxOutput: 1 + p.rng.IntN(room-n), IgnoreEOS: p.rng.IntN(4) > 0,
		MinOutput: p.rng.IntN(4), Salt: uint64(p.rng.IntN(2)), Receiver: x.output,
	}
	x.q = NewSequence(x.request, p.c.Block)
	p.texts = append(p.texts, x)
	p.s[at].Add(x.q)
}

// pick returns one of the unfinished texts of a kind; nil if there is none.
func (p *pair) pick(want func(*continuedText) bool) *continuedText {
	var l []*continuedText
	for _, x := range p.texts {
		if x.output.end == Unfinished && !x.over && want(x) {
			l = append(l, x)
		}
	}
	if len(l) == 0 {
		return nil
	}
	return l[p.rng.IntN(len(l))]
}

// reserve begins the migration of a text.
func (p *pair) reserve(x *continuedText, to, op int) {
	r := &Reservation{}
	switch err := p.s[to].Reserve(r, len(x.q.ids)+p.rng.IntN(p.c.Block*2)); {
	case errors.Is(err, ErrFull):
		p.count["full"]++
	case err != nil:
		p.t.Error(err)
	default:
		x.r, x.to, x.name = r, to, fmt.Sprint("move ", op)
		p.held[to][x.name] = r
	}
}

// abandon ends the migration of a text, and not the text.
func (p *pair) abandon(x *continuedText) {
	if x.r != nil {
		p.s[x.to].Release(x.r)
		delete(p.held[x.to], x.name)
		x.r = nil
	}
}

// adopt does the last round of a frozen text, and continues it at the target.
func (p *pair) adopt(x *continuedText) {
	from, to := p.s[x.at], p.s[x.to]
	// The sequence may have lost its blocks since the rounds, and may be recomputing them.
	if x.q.computed < x.r.filled.computed || to.Reserve(x.r, len(x.q.ids)) != nil {
		p.abandon(x)
		return
	}
	computed := x.q.computed - p.rng.IntN(2)*p.rng.IntN(x.q.computed-x.r.filled.computed+1)
	testkit.NoError(p.t, fill(to, x.r, from, x.q, len(x.q.ids), computed))
	left := x.request
	left.Prompt, left.MaxOutput, left.MinOutput = nil, x.request.MaxOutput-len(x.output.out), max(0, x.request.MinOutput-len(x.output.out))
	q, err := to.Adopt(x.r, left)
	testkit.NoError(p.t, err)
	x.q.Receiver = nil
	testkit.NoError(p.t, from.Drop(x.q))
	delete(p.held[x.to], x.name)
	x.r, x.q, x.at, x.frozen = nil, q, x.to, false
	p.count["moves"]++
}

// pin begins a pull of a prefix.
func (p *pair) pin(to, op int) {
	half := max(1, p.c.Blocks*p.c.Block/2)
	x := pull{name: fmt.Sprint("pull ", op), to: to}
	ids, salt := prompt(half, p.rng.IntN(half+1), p.rng.IntN(3)), uint64(p.rng.IntN(2))
	var err error
	if x.out, x.tokens, err = pin(p.s[1-to], ids, salt, false); err != nil {
		return
	}
	p.held[1-to][x.name] = x.out
	if x.in, x.cached, err = pin(p.s[to], ids[:x.tokens], salt, true); err != nil {
		p.s[1-to].Release(x.out)
		delete(p.held[1-to], x.name)
		return
	}
	p.held[to][x.name] = x.in
	p.pulls = append(p.pulls, x)
}

// endPull ends a pull.
func (p *pair) endPull(i int, commit bool) {
	x := p.pulls[i]
	p.pulls = slices.Delete(p.pulls, i, i+1)
	if commit {
		copyBlocks(p.s[x.to], x.in, p.s[1-x.to], x.out, x.cached/p.c.Block, x.tokens/p.c.Block)
		testkit.NoError(p.t, p.s[x.to].CommitPrefix(x.in, x.tokens))
		p.count["commits"]++
	} else {
		p.s[x.to].Release(x.in)
	}
	p.s[1-x.to].Release(x.out)
	delete(p.held[x.to], x.name)
	delete(p.held[1-x.to], x.name)
}

// step runs an iteration of a scheduler.
func (p *pair) step(at int) {
	s, seen := p.s[at], p.seen[at]
	forecast, preempted := s.Forecast(nil), s.stats.Preemptions
	st := s.Step()
	if p.c.NoCache && s.stats.Preemptions == preempted {
		if p.count["forecasts"]++; forecast != st.Iteration {
			p.t.Errorf("forecast %+v of step %+v", forecast, st.Iteration)
		}
	}
	if st.Decodes+int(st.Prefill) > p.c.Tokens || len(s.running)+len(s.frozen) > p.c.Batch {
		p.t.Errorf("step %+v with %d running and %d frozen", st.Iteration, len(s.running), len(s.frozen))
	}
	for _, e := range st.Events {
		if e.Sequence.Receiver != nil {
			e.Sequence.Receiver.Receive(e)
		}
	}
	for _, x := range p.texts { // a migration ends with its request
		if x.output.end != Unfinished {
			p.abandon(x)
		}
	}
	for h := range seen.content {
		if _, found := s.blocks.Find(h); found != (seen.held[h] > 0) {
			p.t.Errorf("a block is found: %v, and held %d times", found, seen.held[h])
		}
	}
}

// settle ends all pulls and migrations, and lets the texts end.
func (p *pair) settle() {
	for len(p.pulls) > 0 {
		p.endPull(0, false)
	}
	for _, x := range p.texts {
		p.abandon(x)
	}
	for i, s := range p.s {
		s.ThawAll(7)
		drain(p.t, s)
		checkBooks(p.t, s, p.held[i])
		st := s.Stats()
		if st.UsedBlocks+st.Reserved+st.Frozen != 0 {
			p.t.Fatalf("leaked: %+v", st)
		}
		p.count["preemptions"] += int(st.Preemptions)
		p.count["hits"] += int(st.PrefixHits)
		p.count["stored twice"] += p.seen[i].twice
		p.count["removed"] += strings.Count(p.seen[i].take(), "-")
	}
}
