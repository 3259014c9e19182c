// Package batch is the emulator's scheduler: continuous batching, iteration by iteration, as
// vLLM's V1 engine does it. First come, first served; chunked prefill; prefix caching;
// preemption by recompute when blocks run out.
//
// What vLLM does not have are sequences that are adopted: they have stopped elsewhere, and
// their clients wait. The step that admits one computes no prompts, so that an adopted
// sequence waits for no more than the step in progress and a step of decodes. Without this
// rule it would wait until a long prompt, which takes all tokens of every step, is computed.
//
// It reads no clock and starts nothing: Step does one iteration's work and returns how long a
// real engine would have taken. Invariant: what a sequence generates depends on its ids alone,
// never on how it was scheduled.
package batch

import (
	"errors"
	"slices"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/policies"
)

// Config configures a Scheduler. Pool, MaxBatch, MaxTokens and one of Profile and Time are required.
type Config struct {
	// Model generates the tokens. Without it, sequences have lengths only (NewLength): scheduling
	// is the same, and nothing reads or writes the memory of the Pool, which may have none. There
	// are no Tables, Loads and Fills then.
	Model   *model.Model
	Pool    *kv.Pool
	Profile cost.Profile
	// Time prices iterations in seconds; nil is Profile.Seconds.
	Time     func(cost.Iteration) float64
	MaxBatch int // sequences running at once
	// MaxTokens is the maximum number of tokens that one iteration computes, decodes and
	// prompt chunks together; at least MaxBatch.
	MaxTokens int
	// NoPrefixCache turns off the reuse of full blocks by their content.
	NoPrefixCache bool
	// Cache is notified of what the prefix cache holds. nil costs nothing.
	Cache CacheObserver
}

// Stats are a scheduler's counters. The first group is the current state, the rest counts since
// the start.
type Stats struct {
	Running, Waiting int
	Frozen           int
	Loading          int // sequences of Loads
	UsedBlocks       int
	// Reserved is the blocks of reservations that are not adopted, which are included in
	// UsedBlocks. A block that several of them pin counts for each.
	Reserved int
	Held     policies.Tokens // Σ length of the running sequences

	Preemptions      uint64
	PromptTokens     uint64 // of requests that finished their prefill
	GenerationTokens uint64
	PrefixQueries    uint64 // prompt tokens looked up
	PrefixHits       uint64 // prompt tokens found
	ExternalQueries  uint64 // prompt tokens asked of another engine
	ExternalHits     uint64 // prompt tokens that it promised
	PromptLocal      uint64 // of PromptTokens: found in the prefix cache
	PromptExternal   uint64 // of PromptTokens: loaded from another engine
	Iterations       uint64
}

// Step is the result of one iteration. Events is valid until the next Step.
type Step struct {
	cost.Iteration
	Seconds float64 // by the profile; 0 if there was nothing to do
	Events  []Event // in the order of admission
	Loads   []Load  // to be started at once
}

// Scheduler runs sequences on one pool. One goroutine drives it.
type Scheduler struct {
	Config
	blocks *kv.Blocks
	// waiting is in order of arrival, preempted ones first, and before those the adopted
	// ones, which hold blocks already.
	waiting  []*Sequence
	running  []*Sequence // in order of admission
	frozen   []*Sequence
	reserved int    // blocks of reservations
	pinned   int    // blocks of sequences that ended
	loading  int    // sequences of Loads
	full     bool   // as of SetFull
	order    uint64 // of the latest admission
	own      uint64 // hashes of registerOwn so far
	stats    Stats

	planned []chunk // of the latest Step
	events  []Event
	loads   []Load
}

// chunk is n positions of a sequence to compute in this iteration.
type chunk struct {
	s *Sequence
	n int
}

// New returns an empty scheduler.
func New(c Config) (*Scheduler, error) {
	switch {
	case c.Pool == nil:
		return nil, errors.New("scheduler: Pool is required")
	case c.MaxBatch <= 0 || c.MaxTokens < c.MaxBatch:
		return nil, errors.New("scheduler: MaxBatch must be positive and MaxTokens at least as large")
	}
	if c.Time == nil {
		c.Time = c.Profile.Seconds
	}
	return &Scheduler{Config: c, blocks: kv.NewBlocks(c.Pool.Blocks)}, nil
}

// Add queues a sequence. The caller has checked that its prompt and output together fit the
// pool.
func (s *Scheduler) Add(q *Sequence) {
	q.state = waiting
	s.waiting = append(s.waiting, q)
}

// Abort removes a sequence in any state; its full blocks stay cached. It ignores a sequence that
// has ended.
func (s *Scheduler) Abort(q *Sequence) {
	switch q.state {
	case waiting:
		s.waiting = slices.DeleteFunc(s.waiting, func(x *Sequence) bool { return x == q })
	case running:
		s.running = slices.DeleteFunc(s.running, func(x *Sequence) bool { return x == q })
	case frozen:
		s.frozen = slices.DeleteFunc(s.frozen, func(x *Sequence) bool { return x == q })
	case loading: // its blocks are freed by EndLoad
		q.state = ended
		return
	case ended:
		return
	}
	s.drop(q)
}

// Idle reports whether there is nothing to do; frozen sequences do not count.
func (s *Scheduler) Idle() bool { return len(s.running)+len(s.waiting) == 0 }

// Stats returns the counters.
func (s *Scheduler) Stats() Stats {
	t := s.stats
	t.Running, t.Waiting, t.Frozen, t.Reserved = len(s.running), len(s.waiting), len(s.frozen), s.reserved
	t.Loading = s.loading
	t.UsedBlocks = s.blocks.Total() - s.blocks.Free()
	if s.full {
		t.UsedBlocks = s.blocks.Total()
	}
	for _, q := range s.running {
		t.Held += policies.Tokens(q.Length())
	}
	return t
}

// Step plans and computes one iteration. It may find nothing to compute although the scheduler is
// not idle: when frozen sequences and reservations hold the blocks or batch places that others
// wait for.
func (s *Scheduler) Step() Step {
	s.Settle()
	s.events, s.loads = s.events[:0], nil
	noPrompts := s.admitsAdopted()
	budget, pressed := s.planRunning(s.MaxTokens, noPrompts)
	if !pressed || len(s.planned) == 0 {
		s.planWaiting(budget, noPrompts)
	}
	var it cost.Iteration
	for _, c := range s.planned {
		s.account(&it, c)
		s.compute(c)
	}
	if len(s.planned) == 0 {
		if !s.Idle() && len(s.frozen) == 0 && s.reserved == 0 && s.pinned == 0 && s.loading == 0 && !s.full {
			panic("internal error: sequences wait and none can run")
		}
		return Step{Loads: s.loads}
	}
	s.stats.Iterations++
	s.running = slices.DeleteFunc(s.running, func(q *Sequence) bool { return q.state != running })
	return Step{Iteration: it, Seconds: s.Time(it), Events: s.events, Loads: s.loads}
}

// admitsAdopted reports whether the next step admits an adopted sequence.
func (s *Scheduler) admitsAdopted() bool {
	if s.full || len(s.waiting) == 0 || len(s.running)+len(s.frozen) >= s.MaxBatch {
		return false
	}
	q := s.waiting[0]
	return len(q.blocks) > 0 && s.blocksFor(q.length)-len(q.blocks) <= s.blocks.Free()
}

// Forecast returns the work of the next Step if the sequences of arriving are added before it. It
// leaves out what it cannot know: preemptions, and blocks of the prefix cache that two of them share.
func (s *Scheduler) Forecast(arriving []*Sequence) (it cost.Iteration) {
	budget, free, places := s.MaxTokens, s.blocks.Free(), s.MaxBatch-len(s.running)-len(s.frozen)
	noPrompts := s.admitsAdopted()
	plan := func(q Sequence, blocks int) {
		n := min(q.length-q.computed, budget)
		s.account(&it, chunk{&q, n})
		budget, free = budget-n, free-max(0, s.blocksFor(q.computed+n)-blocks)
	}
	for _, q := range s.running {
		if budget > 0 && !(noPrompts && q.isPrompt()) {
			plan(*q, len(q.blocks))
		}
	}
	for _, queue := range [][]*Sequence{s.waiting, arriving} {
		for _, q := range queue {
			next, blocks := *q, len(q.blocks)
			if blocks == 0 && noPrompts {
				return it
			}
			if blocks == 0 {
				blocks = len(s.match(q))
				next.computed = blocks * s.Pool.BlockTokens
			}
			if places--; places < 0 || budget == 0 || s.blocksFor(q.length)-blocks > free {
				return it
			}
			plan(next, blocks)
		}
	}
	return it
}

// Settle ends the latest Step's iteration: Table shows its result from then on. Step calls it for
// the iteration before.
func (s *Scheduler) Settle() {
	for _, c := range s.planned {
		c.s.settled = extent{c.s.length, c.s.computed}
	}
	s.planned = s.planned[:0]
}

// planRunning plans every running sequence's next positions within the budget, those of prompts
// unless noPrompts is true, and preempts the youngest sequences when blocks run out. It returns the remaining budget and whether a sequence
// was preempted.
func (s *Scheduler) planRunning(budget int, noPrompts bool) (left int, pressed bool) {
	for i := 0; i < len(s.running) && budget > 0; i++ {
		q := s.running[i]
		if noPrompts && q.isPrompt() {
			continue
		}
		n := min(q.length-q.computed, budget)
		for !s.grow(q, q.computed+n) {
			pressed = true
			last := len(s.running) - 1
			victim := s.running[last]
			s.running[last] = nil
			s.running = s.running[:last]
			s.preempt(victim)
			if victim == q {
				return budget, pressed
			}
		}
		s.planned = append(s.planned, chunk{q, n})
		budget -= n
	}
	return budget, pressed
}

// planWaiting admits sequences in order of arrival until the budget, the batch or the blocks are
// full, only adopted ones if noPrompts is true. A sequence is admitted only if all its current ids
// fit, although its prefill may take several iterations.
func (s *Scheduler) planWaiting(budget int, noPrompts bool) {
	for !s.full && len(s.waiting) > 0 && len(s.running)+len(s.frozen) < s.MaxBatch && budget > 0 {
		q := s.waiting[0]
		if len(q.blocks) > 0 && s.blocksFor(q.length)-len(q.blocks) > s.blocks.Free() {
			// An adopted sequence that cannot get its next block holds no others: two
			// of them would wait for each other.
			s.waiting = s.waiting[1:]
			s.preempt(q)
			continue
		}
		if noPrompts && len(q.blocks) == 0 {
			return
		}
		hit := s.match(q)
		idle := 0 // hit blocks without references: they are taken off the free list too
		for _, b := range hit {
			if !s.blocks.Used(b) {
				idle++
			}
		}
		if s.blocksFor(q.length)-len(hit)-len(q.blocks) > s.blocks.Free()-idle {
			return
		}
		s.waiting[0] = nil
		s.waiting = s.waiting[1:]
		if q.Load {
			s.startLoad(q, hit)
			continue
		}
		adopted := len(q.blocks) > 0
		s.admit(q, hit)
		n := min(q.length-q.computed, budget)
		if !s.grow(q, q.computed+n) {
			panic("internal error: blocks that were counted are gone")
		}
		s.running = append(s.running, q)
		if adopted {
			s.moveBeforePrompts(q)
		}
		s.planned = append(s.planned, chunk{q, n})
		budget -= n
	}
}

// moveBeforePrompts gives the sequence that was admitted last the place before those whose prompts
// are being computed: these take what is left of a step's tokens.
func (s *Scheduler) moveBeforePrompts(q *Sequence) {
	at := slices.IndexFunc(s.running, (*Sequence).isPrompt)
	if at < 0 || at == len(s.running)-1 {
		return
	}
	q.order = s.running[at].order
	for _, x := range slices.Concat(s.running[at:len(s.running)-1], s.frozen) {
		if x.order >= q.order {
			x.order++
		}
	}
	s.running = slices.Insert(s.running[:len(s.running)-1], at, q)
}

// account adds a chunk to the cost of the iteration.
func (s *Scheduler) account(it *cost.Iteration, c chunk) {
	start, end := c.s.computed, c.s.computed+c.n
	// The last token of an adopted sequence's ids is a generated one.
	if c.n == 1 && (end > c.s.prompt || c.s.adopted && end == c.s.prompt) {
		it.Decodes++
		it.Held += policies.Tokens(end)
		it.Longest = max(it.Longest, policies.Tokens(end))
		return
	}
	it.Prefill += policies.Tokens(c.n)
	it.Prefill2 += float64(end)*float64(end) - float64(start)*float64(start)
}

// compute writes a chunk's KV bytes and, if the sequence has no id left to compute, samples its next
// token.
func (s *Scheduler) compute(c chunk) {
	q := c.s
	if s.Model == nil {
		q.computed += c.n
	} else {
		s.fill(q, c.n)
	}
	if !s.NoPrefixCache {
		s.register(q, c.n/s.Pool.BlockTokens+catchUp)
	}
	if q.computed < q.length {
		return
	}
	if q.Output() == 0 {
		s.stats.PromptTokens += uint64(q.prompt)
		s.stats.PromptLocal += uint64(q.local)
		s.stats.PromptExternal += uint64(q.external)
	}
	s.stats.GenerationTokens++
	t, f := s.sample(q)
	if f != Unfinished {
		if q.Pin && f == AtLength {
			s.pin(q)
		}
		s.drop(q)
	}
	s.events = append(s.events, Event{Sequence: q, Token: t, Finish: f, Cached: q.cached})
}

// fill writes the KV bytes of a sequence's next n positions.
func (s *Scheduler) fill(q *Sequence, n int) {
	size := s.Pool.BlockTokens
	first := q.computed / size
	for range n {
		p := q.computed
		q.digest = s.Model.Fill(s.Pool.Slot(q.blocks[p/size], p%size), q.digest, q.ids[p], p)
		s.Pool.Changed(q.blocks[p/size], p%size, p%size+1)
		q.computed++
	}
	s.Pool.Flush(q.blocks[first : q.computed/size]) // as of Load
}

// sample appends a sequence's next token and returns whether it ends the sequence.
func (s *Scheduler) sample(q *Sequence) (model.Token, Finish) {
	if s.Model == nil {
		q.length++
		if q.Output() >= q.MaxOutput {
			return 0, AtLength
		}
		return 0, Unfinished
	}
	t := s.Model.Next(q.digest, q.ids[q.computed-1], q.ending())
	q.push(t)
	return t, q.finish(t)
}

// catchUp is the number of full blocks of an adopted sequence that are registered in the prefix cache
// per iteration, so that no iteration grows with its length.
const catchUp = 64

// register registers at most n of a sequence's next full blocks in the prefix cache, under the hashes
// of its ids.
func (s *Scheduler) register(q *Sequence, n int) {
	full := min(q.computed/s.Pool.BlockTokens, q.registered+n)
	if s.Model == nil {
		full = min(full, len(q.chain))
	} else if q.registered < full {
		q.hash()
	}
	first := q.registered
	for ; q.registered < full; q.registered++ {
		s.blocks.Register(q.blocks[q.registered], q.BlockHash(q.registered))
	}
	if s.Cache != nil && first < full {
		s.Cache.BlocksStored(q, first, full)
	}
}
