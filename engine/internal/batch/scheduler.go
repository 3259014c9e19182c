// Package batch is the emulator's scheduler: continuous batching, iteration
// by iteration, as vLLM's V1 engine does it. First come, first served; chunked
// prefill; prefix caching; preemption by recompute when blocks run out.
//
// It reads no clock and starts nothing: Step does one iteration's work and
// says how long a real engine would have taken. Its invariant: what a sequence
// generates depends on its ids alone, never on how it was scheduled.
package batch

import (
	"errors"
	"slices"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/policies"
)

// Config says what a scheduler runs on. All fields are required.
type Config struct {
	Model    *model.Model
	Pool     *kv.Pool
	Profile  cost.Profile
	MaxBatch int // sequences running at once
	// MaxTokens is the largest number of tokens that one iteration computes,
	// decodes and prompt chunks together; at least MaxBatch.
	MaxTokens int
	Prefix    PrefixCache
}

// PrefixCache says whether full blocks are found again by their content.
type PrefixCache int

// The two settings.
const (
	PrefixOn PrefixCache = iota
	PrefixOff
)

// Stats is what a scheduler counts. Those of the first group are now, the rest
// since the beginning.
type Stats struct {
	Running, Waiting int
	Frozen           int
	UsedBlocks       int
	Reserved         int             // blocks of reservations that nobody has adopted; used too
	Held             policies.Tokens // Σ length of the running sequences

	Preemptions      uint64
	PromptTokens     uint64 // of requests that finished their prefill
	GenerationTokens uint64
	PrefixQueries    uint64 // prompt tokens looked up
	PrefixHits       uint64 // of those, found
	Iterations       uint64
}

// Step is what one iteration did. Events is valid until the next Step.
type Step struct {
	cost.Iteration
	Seconds float64 // by the profile; 0 when there was nothing to do
	Events  []Event // in the order of admission
}

// Scheduler runs sequences on one pool. It is driven by one goroutine.
type Scheduler struct {
	Config
	blocks *kv.Blocks
	// waiting is in order of arrival, preempted ones first; and before those, the
	// adopted ones that hold blocks already.
	waiting  []*Sequence
	running  []*Sequence // in order of admission
	frozen   []*Sequence
	reserved int    // blocks of reservations
	order    uint64 // of the latest admission
	stats    Stats

	planned []chunk // of the latest Step
	events  []Event
}

// chunk is n positions of a sequence to compute in this iteration.
type chunk struct {
	s *Sequence
	n int
}

// New returns an empty scheduler.
func New(c Config) (*Scheduler, error) {
	switch {
	case c.Model == nil || c.Pool == nil:
		return nil, errors.New("scheduler: Model and Pool are required")
	case c.MaxBatch <= 0 || c.MaxTokens < c.MaxBatch:
		return nil, errors.New("scheduler: MaxBatch must be positive and MaxTokens at least as large")
	}
	return &Scheduler{Config: c, blocks: kv.NewBlocks(c.Pool.Blocks)}, nil
}

// Add queues a sequence. Its prompt and output together must fit the pool;
// the caller has checked that.
func (s *Scheduler) Add(q *Sequence) {
	q.state = waiting
	s.waiting = append(s.waiting, q)
}

// Abort removes a sequence wherever it is; its full blocks stay cached. A
// sequence that has ended is left alone.
func (s *Scheduler) Abort(q *Sequence) {
	switch q.state {
	case waiting:
		s.waiting = slices.DeleteFunc(s.waiting, func(x *Sequence) bool { return x == q })
	case running:
		s.running = slices.DeleteFunc(s.running, func(x *Sequence) bool { return x == q })
	case frozen:
		s.frozen = slices.DeleteFunc(s.frozen, func(x *Sequence) bool { return x == q })
	}
	s.drop(q)
}

// Idle reports whether there is nothing to do: frozen sequences are none's work.
func (s *Scheduler) Idle() bool { return len(s.running)+len(s.waiting) == 0 }

// Stats returns the counters.
func (s *Scheduler) Stats() Stats {
	t := s.stats
	t.Running, t.Waiting, t.Frozen, t.Reserved = len(s.running), len(s.waiting), len(s.frozen), s.reserved
	t.UsedBlocks = s.blocks.Total() - s.blocks.Free()
	for _, q := range s.running {
		t.Held += policies.Tokens(q.Length())
	}
	return t
}

// Step plans and computes one iteration. It may find nothing to compute though
// the scheduler is not idle: when frozen sequences and reservations have the
// blocks, or the places in the batch, that the others wait for.
func (s *Scheduler) Step() Step {
	s.Settle()
	s.events = s.events[:0]
	budget, pressed := s.planRunning(s.MaxTokens)
	if !pressed || len(s.planned) == 0 {
		s.planWaiting(budget)
	}
	var it cost.Iteration
	for _, c := range s.planned {
		s.account(&it, c)
		s.compute(c)
	}
	if len(s.planned) == 0 {
		if !s.Idle() && len(s.frozen) == 0 && s.reserved == 0 {
			panic("internal error: sequences wait and none can run")
		}
		return Step{}
	}
	s.stats.Iterations++
	s.running = slices.DeleteFunc(s.running, func(q *Sequence) bool { return q.state != running })
	return Step{Iteration: it, Seconds: s.Profile.Seconds(it), Events: s.events}
}

// Settle says that the time of the latest Step's iteration is over. What it has
// computed shows in Table from then on; Step does it for the one before.
func (s *Scheduler) Settle() {
	for _, c := range s.planned {
		c.s.settled = extent{len(c.s.ids), c.s.computed}
	}
	s.planned = s.planned[:0]
}

// planRunning gives every running sequence its next positions, within the
// budget, and preempts from the youngest when blocks run out. It returns the
// budget left and whether anything was preempted.
func (s *Scheduler) planRunning(budget int) (left int, pressed bool) {
	for i := 0; i < len(s.running) && budget > 0; i++ {
		q := s.running[i]
		n := min(len(q.ids)-q.computed, budget)
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

// planWaiting admits in order of arrival until the budget, the batch or the
// blocks are full. A sequence is admitted only when all its present ids fit,
// though its prefill may take several iterations.
func (s *Scheduler) planWaiting(budget int) {
	for len(s.waiting) > 0 && len(s.running)+len(s.frozen) < s.MaxBatch && budget > 0 {
		q := s.waiting[0]
		if len(q.blocks) > 0 && s.blocksFor(len(q.ids))-len(q.blocks) > s.blocks.Free() {
			// An adopted sequence that cannot have its next block holds on to none:
			// two of them would wait for each other.
			s.waiting = s.waiting[1:]
			s.preempt(q)
			continue
		}
		hit := s.match(q)
		idle := 0 // hit blocks that nobody uses: they come off the free list too
		for _, b := range hit {
			if !s.blocks.Used(b) {
				idle++
			}
		}
		if s.blocksFor(len(q.ids))-len(hit)-len(q.blocks) > s.blocks.Free()-idle {
			return
		}
		s.waiting[0] = nil
		s.waiting = s.waiting[1:]
		s.admit(q, hit)
		n := min(len(q.ids)-q.computed, budget)
		if !s.grow(q, q.computed+n) {
			panic("internal error: blocks that were counted are gone")
		}
		s.running = append(s.running, q)
		s.planned = append(s.planned, chunk{q, n})
		budget -= n
	}
}

// match returns the cached blocks that hold a prefix of a sequence. At least
// one token is left to compute: it is what the next one is sampled from.
func (s *Scheduler) match(q *Sequence) []kv.Block {
	if s.Prefix == PrefixOff || len(q.blocks) > 0 {
		return nil // an adopted sequence brings its blocks along
	}
	var hit []kv.Block
	for n := range min(len(q.chain), (len(q.ids)-1)/s.Pool.BlockTokens) {
		b, ok := s.blocks.Find(q.key(n))
		if !ok {
			break
		}
		hit = append(hit, b)
	}
	return hit
}

// admit attaches the blocks of a prefix hit. Their bytes are read anew: what
// is in the pool decides the text, not what once was written there.
func (s *Scheduler) admit(q *Sequence, hit []kv.Block) {
	s.Pool.Load(hit) // an error is the Pool's, and ends the engine
	for i, b := range hit {
		s.blocks.Share(b)
		for j := range s.Pool.BlockTokens {
			q.digest += model.Read(s.Pool.Slot(b, j), i*s.Pool.BlockTokens+j)
		}
	}
	if len(q.blocks) == 0 {
		q.blocks = append(q.blocks, hit...)
		q.computed, q.registered = len(hit)*s.Pool.BlockTokens, len(hit)
	}
	q.state = running
	s.order++
	q.order = s.order
	if !q.admitted {
		q.admitted, q.cached = true, q.computed
		s.stats.PrefixQueries += uint64(len(q.ids))
		s.stats.PrefixHits += uint64(q.computed)
	}
}

func (s *Scheduler) blocksFor(tokens int) int {
	return (tokens + s.Pool.BlockTokens - 1) / s.Pool.BlockTokens
}

// grow gives a sequence blocks for its first n tokens. When it reports false
// the blocks it did get stay with the sequence.
func (s *Scheduler) grow(q *Sequence, n int) bool {
	for len(q.blocks) < s.blocksFor(n) {
		b, ok := s.blocks.Take()
		if !ok {
			return false
		}
		s.Pool.Forget(b)
		q.blocks = append(q.blocks, b)
	}
	return true
}

// preempt takes a running sequence's blocks and queues it first: it will
// recompute what the prefix cache has lost by then.
func (s *Scheduler) preempt(q *Sequence) {
	s.stats.Preemptions++
	s.drop(q)
	q.generation++
	s.queueFirst(q)
}

// queueFirst queues a sequence before all others, but behind those that hold
// blocks: these need no more than they have, and may be what it waits for.
func (s *Scheduler) queueFirst(q *Sequence) {
	at := 0
	for at < len(s.waiting) && len(s.waiting[at].blocks) > 0 {
		at++
	}
	q.state = waiting
	s.waiting = slices.Insert(s.waiting, at, q)
}

// drop releases everything a sequence holds in the pool.
func (s *Scheduler) drop(q *Sequence) {
	s.blocks.Release(q.blocks)
	q.blocks, q.computed, q.registered, q.digest, q.state = q.blocks[:0], 0, 0, model.Digest(q.Adapter), ended
	q.settled.computed = 0
}

// account adds a chunk to what the iteration costs.
func (s *Scheduler) account(it *cost.Iteration, c chunk) {
	start, end := c.s.computed, c.s.computed+c.n
	// The last token of an adopted sequence's ids is one that was generated.
	if c.n == 1 && (end > len(c.s.Prompt) || c.s.adopted && end == len(c.s.Prompt)) {
		it.Decodes++
		it.Held += policies.Tokens(end)
		it.Longest = max(it.Longest, policies.Tokens(end))
		return
	}
	it.Prefill += policies.Tokens(c.n)
	it.Prefill2 += float64(end)*float64(end) - float64(start)*float64(start)
}

// compute writes a chunk's KV bytes and, when the sequence has no id left to
// compute, samples its next token.
func (s *Scheduler) compute(c chunk) {
	q, size := c.s, s.Pool.BlockTokens
	first := q.computed / size
	for range c.n {
		p := q.computed
		q.digest = s.Model.Fill(s.Pool.Slot(q.blocks[p/size], p%size), q.digest, q.ids[p], p)
		s.Pool.Changed(q.blocks[p/size], p%size, p%size+1)
		q.computed++
	}
	s.Pool.Flush(q.blocks[first : q.computed/size]) // as of Load
	if s.Prefix == PrefixOn {
		s.register(q, c.n/size+catchUp)
	}
	if q.computed < len(q.ids) {
		return
	}
	if q.Output() == 0 {
		s.stats.PromptTokens += uint64(len(q.Prompt))
	}
	s.stats.GenerationTokens++
	t := s.Model.Next(q.digest, q.ids[q.computed-1], q.ending())
	q.push(t)
	f := q.finish(t)
	if f != Unfinished {
		s.drop(q)
	}
	s.events = append(s.events, Event{Sequence: q, Token: t, Finish: f, Cached: q.cached})
}

// catchUp is how many full blocks of an adopted sequence are offered to the
// prefix cache in an iteration, so that no iteration grows with its length.
const catchUp = 64

// register offers a sequence's next full blocks, n at most, to the prefix cache,
// under the hashes that follow from its ids.
func (s *Scheduler) register(q *Sequence, n int) {
	full := min(q.computed/s.Pool.BlockTokens, q.registered+n)
	if q.registered < full {
		q.hash()
	}
	for ; q.registered < full; q.registered++ {
		s.blocks.Register(q.blocks[q.registered], q.key(q.registered))
	}
}
