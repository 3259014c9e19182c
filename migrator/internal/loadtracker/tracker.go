// Package loadtracker keeps the load of a replica: the exact length of every
// request that its engine works on, and the flows that these lengths make (the
// LoadTracker of the paper, section 4).
//
// The driver, migrator/frontend, reports what happens to a request and reads the
// state; the package opens no connection and starts no goroutine. Its invariant:
// at any moment the sums that it reports are those over the requests that have
// begun and not ended, each counted once, at the one replica whose engine runs
// it.
//
// A token costs the goroutine that reports it a clock reading and a few atomic
// writes to the request's own memory. Shared memory is touched only when a
// request begins or ends, and by Update.
package loadtracker

import (
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// Counter counts flows: a *partition.FlowCounter, or a plain sum in tests. now is in
// seconds and never goes back. The Tracker calls it from one goroutine at a time.
type Counter interface {
	// CountArrival counts an arriving request by its prompt, of which cached
	// tokens need no prefill.
	CountArrival(now float64, input, cached policies.Tokens)
	// CountPrefill counts the prefill of a request that did not arrive here: it
	// began at another replica and is recomputed. cached is as in CountArrival.
	CountPrefill(now float64, input, cached policies.Tokens)
	// CountTokens counts n tokens; with the last one the request had the given
	// length.
	CountTokens(now float64, length policies.Tokens, n int)
	// CountFinish counts a request's end.
	CountFinish(now float64, input, output policies.Tokens)
	// Rates returns the flows at now, in memory of their own.
	Rates(now float64) policies.Flow
}

// Config configures a Tracker. All fields but Recent are required.
type Config struct {
	// Edges are the length buckets of snapshots: from 0, strictly increasing.
	Edges []policies.Tokens
	// Counter counts the flows; the Tracker owns it.
	Counter Counter
	// Recent is the window over which the time between tokens is averaged; 0
	// means 2 s.
	Recent time.Duration
}

// shards spread the requests that begin and end over locks; the number is a power
// of two a few times above the cores of the machines this runs on.
const shards = 64

// Tracker keeps the load of one replica. Its methods are safe for concurrent
// use.
type Tracker struct {
	// Fixed after New.
	edges  []policies.Tokens
	recent float64
	start  time.Time

	next   atomic.Uint32 // the shard that takes the next request
	shards [shards]shard

	mu      sync.Mutex
	counter Counter
	learner length.Learner
	seed    maphash.Seed          // of the hashes of prompts
	prompts [recentPrompts]uint64 // hash table of recent prompts' hashes; a later one replaces an earlier one
	// Sums over the estimates that requests arrived with: of the relative error,
	// and their number, both forgetting.
	errorSum, errorN float64
	// Sums over the time between tokens: of the seconds, and the number of
	// tokens, both forgetting.
	gapSum, gapN float64
	updatedAt    float64
}

// recentPrompts is about how many recent prompts are remembered, several times as many as the learner weighs.
const recentPrompts = 1 << 12

type shard struct {
	mu   sync.Mutex
	work map[*Work]struct{}
	_    [48]byte // shards share no cache line
}

// New returns a Tracker without requests. It panics if the configuration is not
// valid, because the front end has checked it.
func New(cfg Config) *Tracker {
	if len(cfg.Edges) == 0 || cfg.Counter == nil {
		panic("internal error: a load tracker needs edges and a counter")
	}
	if cfg.Recent <= 0 {
		cfg.Recent = 2 * time.Second
	}
	t := &Tracker{edges: cfg.Edges, recent: cfg.Recent.Seconds(), start: time.Now(), counter: cfg.Counter, seed: maphash.MakeSeed()}
	for i := range t.shards {
		t.shards[i].work = make(map[*Work]struct{})
	}
	return t
}

func (t *Tracker) now() int64 { return int64(time.Since(t.start)) }

func seconds(ns int64) float64 { return float64(ns) / 1e9 }

const (
	// maxLength bounds every length that is reported, so that sums over as many
	// requests as memory holds stay in range.
	maxLength policies.Tokens = 1 << 32
	// maxError bounds the weight of one estimate's relative error in the mean.
	maxError = 10
	// MaxSequences bounds the sequences that one request counts as.
	MaxSequences = 1 << 14
)

// Begin adds a request, which waits for its first token unless it came with its
// KV. The caller must call End or EndMoved.
func (t *Tracker) Begin(a Arrival) *Work {
	a.Estimate, a.RoutedEstimate, a.Others = min(a.Estimate, maxLength), min(a.RoutedEstimate, maxLength), min(a.Others, maxLength)
	a.Prompts = min(max(a.Prompts, 1), MaxSequences)
	a.Sequences = min(max(a.Sequences, a.Prompts), MaxSequences)
	a.Input, a.Output = min(max(a.Input, 0), maxLength), min(max(a.Output, 0), maxLength)
	w := &Work{t: t, arrival: a, shard: uint8(t.next.Add(1) % shards)}
	w.cached.Store(int64(min(max(a.Cached, 0), maxLength)))
	if w.resumed() {
		w.input.Store(int64(a.Input))
		w.output.Store(int64(a.Output))
		w.counted = int64(a.Output)
	}
	if w.resumed() && a.HasKV {
		w.AddOutput(0)
	}
	s := &t.shards[w.shard]
	s.mu.Lock()
	s.work[w] = struct{}{}
	s.mu.Unlock()
	return w
}

// each calls do for every request that has begun and not ended, in no order.
func (t *Tracker) each(do func(*Work)) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		for w := range s.work {
			do(w)
		}
		s.mu.Unlock()
	}
}

// Update brings the flows and the time between tokens up to date. The caller
// calls it a few times a second; State does it too.
func (t *Tracker) Update() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.updateLocked()
}

func (t *Tracker) updateLocked() (now float64) {
	now = seconds(t.now())
	keep := math.Exp((t.updatedAt - now) / t.recent)
	t.updatedAt = now
	t.gapSum *= keep
	t.gapN *= keep
	t.each(func(w *Work) { t.countLocked(w, now) })
	return now
}

// countLocked counts what a request generated since it was last counted.
func (t *Tracker) countLocked(w *Work, now float64) {
	last, output := w.last.Load(), w.output.Load()
	if last == 0 {
		return
	}
	if output > w.counted {
		for i := range w.arrival.Sequences {
			input, part := w.sequence(i, output)
			_, before := w.sequence(i, w.counted)
			if part > before {
				t.counter.CountTokens(now, input+part, int(part-before))
			}
		}
		w.counted = output
	}
	if w.untimed.Load() || w.arrival.Sequences > 1 {
		return // the time between the tokens of one sequence is not known
	}
	if w.gapFrom == 0 {
		w.gapFrom, w.gapOutput = w.first.Load(), w.firstOutput.Load()
	}
	if n := output - w.gapOutput; n > 0 && last > w.gapFrom {
		t.gapSum += seconds(last - w.gapFrom)
		t.gapN += float64(n)
		w.gapFrom, w.gapOutput = last, output
	}
}

// Iteration returns the recent mean time between a request's tokens in seconds, as of the
// last Update; 0 if none is known.
func (t *Tracker) Iteration() float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gapN <= 0 {
		return 0
	}
	return t.gapSum / t.gapN
}

// State is the state of a replica at one moment.
type State struct {
	Load policies.Load
	Flow policies.Flow
	// Snapshot is the requests in flight by bucket of the edges.
	Snapshot []policies.Batch
	// BytesPerToken is learnt from exact prompt lengths, 0 before the first.
	BytesPerToken float64
	// EstimateError is the mean of |estimate − exact| / exact, at most 10 each,
	// over recent requests and the estimates that they arrived with; while none
	// came with an estimate, of the Tracker's own.
	EstimateError float64
}

// State returns the present state.
func (t *Tracker) State() State {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.updateLocked()
	r := State{Flow: t.counter.Rates(now), Snapshot: make([]policies.Batch, len(t.edges))}
	t.each(func(w *Work) {
		input, output := w.inputOrEstimate(), policies.Tokens(w.output.Load())
		n := w.arrival.Sequences
		if w.last.Load() == 0 {
			r.Load.Waiting += n
			r.Load.Promised += input + output
			r.Load.Cached += min(policies.Tokens(w.cached.Load()), input+output)
		} else {
			r.Load.Running += n
			r.Load.Held += input + output
		}
		input, output = w.sequence(0, int64(output))
		b := policies.BucketOf(t.edges, input+output)
		r.Snapshot[b] = r.Snapshot[b].Plus(policies.Batch{}.Add(input, input+output).Scale(float64(n)))
	})
	switch {
	case r.Load.Running == 0:
		t.gapSum, t.gapN = 0, 0
	case t.gapN > 0:
		r.Load.Iteration = t.gapSum / t.gapN
	}
	if t.learner.Observations() > 0 {
		r.BytesPerToken = t.learner.Ratio().Float()
	}
	r.EstimateError = t.learner.RelativeError()
	if t.errorN > 0 {
		r.EstimateError = t.errorSum / t.errorN
	}
	return r
}

// NotePrompt records an arriving prompt, as it stands in the body, and reports whether the same bytes have arrived
// recently.
func (t *Tracker) NotePrompt(prompt []byte) (repeated bool) {
	if len(prompt) == 0 {
		return false
	}
	digest := maphash.Bytes(t.seed, prompt)
	t.mu.Lock()
	defer t.mu.Unlock()
	at := &t.prompts[digest%uint64(len(t.prompts))]
	repeated = *at == digest
	*at = digest
	return repeated
}

// Estimator returns the length estimator with the ratio learnt so far.
func (t *Tracker) Estimator() length.Estimator {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.learner.Estimator()
}

// learnRatioLocked learns from the exact length of a prompt, of which cached tokens were cached.
func (t *Tracker) learnRatioLocked(a Arrival, exact, cached policies.Tokens) {
	if a.Prompts == 1 && !a.Repeated {
		t.learner.Observe(a.TextBytes, exact, cached)
	}
}

// learnEstimateLocked compares a request's estimates with its exact prompt
// length.
func (t *Tracker) learnEstimateLocked(a Arrival, exact policies.Tokens) {
	const forget = 1.0 / 512 // of the mean over the latest requests
	if a.Prompts > 1 {
		return // cached is the sum over all prompts, but the estimate is of the longest one
	}
	if a.RoutedEstimate <= 0 || exact <= 0 {
		return
	}
	t.errorSum += min(math.Abs(float64(a.RoutedEstimate-exact))/float64(exact), maxError) - float64(t.errorSum*forget)
	t.errorN += 1 - float64(t.errorN*forget)
}
