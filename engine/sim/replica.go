package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/admission"
)

// request is a request in flight.
type request struct {
	trace.Request
	// Every token touches these and the lengths: they lie side by side.
	tokens int64         // generated
	last   time.Duration // of them

	first    time.Duration
	sequence *batch.Sequence
	index    uint64
	proxy    int
	replica  int
	slot     int // in replica.resident
	cached   int // prompt tokens that were found in the prefix cache
	// How often it has moved, when it came to its replica, and its transfer.
	epoch    policies.Epoch
	since    policies.Micros
	transfer *transfer
	// In a fleet of Cascade: its name in the market, and the replica of its front end. resumed says that
	// it has to compute its KV again, aborted that its engine's iteration has a token of it too many.
	id               string
	front            int
	known            int // of the blocks of its prompt, what its front end knew when it came
	resumed, aborted bool
	arrived          policies.Micros // at its replica
	hit              policies.Tokens // of its prompt, what the prefix cache had when it came
	entry            admission.Entry // of the work that its replica has admitted
}

// length returns the present length.
func (q *request) length() policies.Tokens { return q.Input + policies.Tokens(q.tokens) }

// Receive implements batch.Receiver, as whose value a sequence carries its request. The replica's
// iterations handle the events.
func (*request) Receive(batch.Event) {}

// replica is one engine. It does what package emulator's loop does, in virtual time: requests that
// arrive during an iteration wait for its end.
type replica struct {
	index     int
	config    batch.Config
	scheduler *batch.Scheduler
	inbox     []*request
	resident  []*request    // that have not ended, in no order
	running   bool          // an iteration is under way
	endsAt    time.Duration // of that one
	endedAt   time.Duration // of the last one
	step      batch.Step    // that one
	life      uint32        // incremented by each failure
	failed    bool
	speed     float64       // in relation to the profile
	busy      float64       // seconds in iterations
	freezing  []*transfer   // whose requests are to be frozen when the iteration ends
	transfers []*transfer   // under way, from and to here
	lost      []batch.Stats // of earlier lives
	// sending and receiving count the transfers under way, which share the replica's link.
	sending, receiving int
	holdings           *holdings // nil: nothing asks what it has cached
}

func newReplica(index int, c *Config, price func(cost.Iteration) float64) (*replica, error) {
	r := &replica{index: index, speed: 1}
	r.config = batch.Config{
		Pool:     &kv.Pool{Layout: kv.Layout{Blocks: int(c.KVTokens) / defaultBlockTokens, BlockTokens: defaultBlockTokens, SlotBytes: 8, Regions: 1}},
		Profile:  c.Profile,
		Time:     func(it cost.Iteration) float64 { return price(it) / r.speed },
		MaxBatch: c.MaxBatch, MaxTokens: c.MaxBatchedTokens, NoPrefixCache: c.NoPrefixCache,
	}
	return r, r.start()
}

// start begins a life with an empty engine.
func (r *replica) start() (err error) {
	if r.holdings != nil {
		r.holdings.clear()
	}
	r.scheduler, err = batch.New(r.config)
	r.inbox, r.resident, r.running = nil, nil, false
	return err
}

// fits reports whether a request fits the KV cache at all.
func (r *replica) fits(q trace.Request) bool {
	tokens := policies.Tokens(r.config.Pool.BlockTokens)
	return (q.Input+q.Output+tokens-1)/tokens <= policies.Tokens(r.config.Pool.Blocks)
}

// submit queues a request for the next iteration.
func (r *replica) submit(q *request) {
	r.accept(q)
	r.inbox = append(r.inbox, q)
}

// accept adds a request that is to be queued later.
func (r *replica) accept(q *request) {
	q.sequence = batch.NewLength(batch.Request{MaxOutput: int(q.Output), Receiver: q}, int(q.Input), blockHashes(q.Request, r.config.Pool.BlockTokens))
	if len(q.Prefix) > 0 {
		q.hit = policies.Tokens(r.scheduler.Cached(q.sequence))
	}
	r.add(q)
}

// add adds a request that is here from now on.
func (r *replica) add(q *request) {
	q.replica, q.slot = r.index, len(r.resident)
	r.resident = append(r.resident, q)
}

// find returns the resident request with an id; nil if there is none.
func (r *replica) find(id string) *request {
	for _, q := range r.resident {
		if q.id == id {
			return q
		}
	}
	return nil
}

// remove removes a request that ended.
func (r *replica) remove(q *request) {
	last := len(r.resident) - 1
	r.resident[q.slot] = r.resident[last]
	r.resident[q.slot].slot = q.slot
	r.resident[last] = nil
	r.resident = r.resident[:last]
}

// lose ends the life with all requests, and returns them in the order of their arrival.
func (r *replica) lose() ([]*request, error) {
	gone := r.resident
	slices.SortFunc(gone, func(a, b *request) int { return cmp.Compare(a.index, b.index) })
	r.lost = append(r.lost, r.scheduler.Stats())
	r.failed = true
	r.life++
	return gone, r.start()
}

// begin starts the next iteration and returns how long it takes; 0 if there is nothing to do.
func (r *replica) begin() time.Duration {
	for _, q := range r.inbox {
		r.scheduler.Add(q.sequence)
	}
	r.inbox = r.inbox[:0]
	r.running = false
	if r.scheduler.Idle() {
		return 0
	}
	r.step = r.scheduler.Step()
	r.running = r.step.Seconds > 0
	r.busy += r.step.Seconds
	return time.Duration(r.step.Seconds * float64(time.Second))
}

// freeze stops a request between two iterations; false if it has no KV here to go on with.
func (r *replica) freeze(q *request) bool {
	r.scheduler.Settle()
	return r.scheduler.Freeze(q.sequence, 1) == nil
}

// load returns the load, as a migrator counts it.
func (r *replica) load() (l policies.Load) {
	for _, q := range r.resident {
		if q.tokens == 0 || q.resumed {
			l.Waiting++
			l.Promised += q.length()
			if !q.resumed {
				l.Cached += q.hit
			}
			continue
		}
		l.Running++
		l.Held += q.length()
	}
	return l
}

// usedKV returns the KV in use, without what is reserved for requests that have not come yet.
func (r *replica) usedKV() policies.Tokens {
	s := r.scheduler.Stats()
	return policies.Tokens((s.UsedBlocks - s.Reserved) * r.config.Pool.BlockTokens)
}

// cachedTokens returns how much of a request's prompt the prefix cache holds now.
func (r *replica) cachedTokens(q trace.Request) policies.Tokens {
	chain := blockHashes(q, r.config.Pool.BlockTokens)
	return policies.Tokens(r.scheduler.Cached(batch.NewLength(batch.Request{}, int(q.Input), chain)))
}

// blockHashes returns the hashes of a prompt's full blocks of so many tokens, by the ids of its trace.
func blockHashes(q trace.Request, tokens int) []kv.Hash {
	if len(q.Prefix) == 0 {
		return nil
	}
	parts := trace.BlockTokens / tokens
	n := min(len(q.Prefix)*parts, int(q.Input)/tokens)
	chain := make([]kv.Hash, n)
	for i := range chain {
		chain[i] = hashBlock(q.Prefix[i/parts], uint64(i%parts))
	}
	return chain
}

// hashBlock returns the hash of a part of a trace's block: not 0, and below 1<<63.
func hashBlock(id, part uint64) kv.Hash {
	x := id*0x9e3779b97f4a7c15 + part
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	x ^= x >> 32
	return kv.Hash(max(1, x>>1))
}
