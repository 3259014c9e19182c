package loadtracker

import (
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// Arrival is what is known of a request before its engine has answered.
type Arrival struct {
	// Estimate is the prompt length that counts until the exact one is known. For a list of prompts it
	// is the length of the longest one, and Others is the sum over the others.
	Estimate, Others policies.Tokens
	// RoutedEstimate is the estimate that the request was routed by, 0 for none.
	RoutedEstimate policies.Tokens
	// TextBytes is the length of the prompt's text, to learn bytes per token
	// from; 0 if it does not determine the prompt's length (token ids, images).
	TextBytes int64
	// Repeated says that an equal prompt has arrived lately: the learner ignores this one.
	Repeated bool
	// Prompts and Sequences are those of policies.Request. Each sequence counts as a request of its own,
	// with an equal part of the prompts and of the output.
	Prompts, Sequences int

	// Input and Output are the exact lengths of a request that began at another
	// replica and goes on at this one; Input is 0 for one that begins here. A
	// request that goes on does not arrive again, wherever it comes from.
	Input, Output policies.Tokens
	// Cached is how much of the prompt the engine is expected to find in its cache.
	Cached policies.Tokens
	// HasKV says that the KV of such a request is here, so that it runs at once;
	// else it waits for its KV to be computed.
	HasKV bool
}

// Work is one request at the replica whose engine runs it. SetInput, AddOutput
// and SetUsage are called by one goroutine at a time; End and EndMoved by any,
// once or more.
type Work struct {
	t       *Tracker
	arrival Arrival
	shard   uint8

	// Written by the goroutine that reads the engine; read by Update.
	input       atomic.Int64 // exact, 0 while unknown
	output      atomic.Int64
	first, last atomic.Int64 // when tokens came, in ns of the tracker's time; 0 for never
	firstOutput atomic.Int64
	cached      atomic.Int64
	untimed     atomic.Bool // see StopTiming
	ended       atomic.Bool
	moved       atomic.Bool // another replica continues it

	// Guarded by the tracker's mu.
	counted   int64 // output that is in the flows
	gapFrom   int64 // until when the time between tokens is counted
	gapOutput int64
}

// inputOrEstimate returns the exact prompt length, or the estimate while it is
// unknown.
func (w *Work) inputOrEstimate() policies.Tokens {
	if n := w.input.Load(); n > 0 {
		return policies.Tokens(n)
	}
	return w.arrival.Estimate + w.arrival.Others
}

// sequence returns the prompt and the output of the i-th of the request's sequences, whose outputs add up
// to output.
func (w *Work) sequence(i int, output int64) (input, part policies.Tokens) {
	return w.inputOrEstimate() / policies.Tokens(w.arrival.Prompts), policies.Tokens((output + int64(i)) / int64(w.arrival.Sequences))
}

// resumed reports whether the request began at another replica.
func (w *Work) resumed() bool { return w.arrival.Input > 0 }

// SetInput sets the exact length of the prompt. Only the first call counts, and
// none for a request that began elsewhere.
func (w *Work) SetInput(exact policies.Tokens) {
	exact = min(exact, maxLength)
	if exact <= 0 || !w.input.CompareAndSwap(0, int64(exact)) {
		return
	}
	w.t.mu.Lock()
	defer w.t.mu.Unlock()
	w.t.learnEstimateLocked(w.arrival, exact)
}

// AddOutput counts n more tokens that came just now. The first call makes the
// request a running one; n is 0 for an answer whose tokens are not known before
// its end.
func (w *Work) AddOutput(n int) {
	now := max(w.t.now(), 1)
	output := w.output.Add(int64(n))
	if w.first.Load() == 0 {
		w.firstOutput.Store(output)
		w.first.Store(now)
	}
	w.last.Store(now)
}

// StopTiming is called when a request's tokens wait for its client: from then on, the time between
// them says nothing about the engine, and does not count.
func (w *Work) StopTiming() { w.untimed.Store(true) }

// SetUsage sets the engine's own final counts, which are never below those
// reported before. The engine counts as the output of a request that began
// elsewhere only its own tokens.
func (w *Work) SetUsage(input, output, cached policies.Tokens) {
	input, output = min(input, maxLength), min(output, maxLength)
	if w.resumed() {
		output += w.arrival.Output
	}
	w.SetInput(input)
	w.SetCached(min(cached, input))
	if more := int64(output) - w.output.Load(); more > 0 && w.first.Load() != 0 {
		w.output.Add(more) // not AddOutput: it is unknown when these came
	}
}

// SetCached sets how much of the prompt needed no prefill.
func (w *Work) SetCached(n policies.Tokens) { w.cached.Store(int64(n)) }

// Counts are the tokens of a request so far.
type Counts struct {
	Input, Output, Cached policies.Tokens
	Exact                 bool      // Input comes from an engine
	Last                  time.Time // when the last token came; zero before the first one
}

// Counts returns the tokens of the request so far.
func (w *Work) Counts() Counts {
	c := Counts{Input: w.inputOrEstimate(), Output: policies.Tokens(w.output.Load()), Cached: policies.Tokens(w.cached.Load()), Exact: w.input.Load() > 0}
	if last := w.last.Load(); last > 0 {
		c.Last = w.t.start.Add(time.Duration(last))
	}
	return c
}

// Begun reports whether the request has a token, or came with its KV.
func (w *Work) Begun() bool { return w.first.Load() != 0 }

// Length returns the request's present length.
func (w *Work) Length() policies.Tokens {
	return w.inputOrEstimate() + policies.Tokens(w.output.Load())
}

// EndMoved is End for a request that another replica continues: it has not
// finished, and its arrival, if it had one, was here.
func (w *Work) EndMoved() {
	w.moved.Store(true)
	w.End()
}

// End removes the request. A request whose prompt was never computed, as far as
// the engine reported, is not counted in the flows. Its arrival is counted here
// and not before, because engines report only at the end how much of the prompt
// was cached.
func (w *Work) End() {
	if w.ended.Swap(true) {
		return
	}
	s := &w.t.shards[w.shard]
	s.mu.Lock()
	delete(s.work, w)
	s.mu.Unlock()

	w.t.mu.Lock()
	defer w.t.mu.Unlock()
	now := seconds(w.t.now())
	w.t.countLocked(w, now)
	input := policies.Tokens(w.input.Load())
	switch cached := policies.Tokens(w.cached.Load()); {
	case input == 0:
	case !w.resumed():
		w.t.learnRatioLocked(w.arrival, input, cached)
		// The sequences of one prompt share it: it is computed once.
		each, all := input/policies.Tokens(w.arrival.Prompts), w.arrival.Prompts
		for i := range w.arrival.Sequences {
			if i < all {
				w.t.counter.CountArrival(now, each, cached/policies.Tokens(all))
			} else {
				w.t.counter.CountArrival(now, each, each)
			}
		}
	case !w.arrival.HasKV && w.first.Load() != 0:
		// Its engine got all ids as a prompt.
		w.t.counter.CountPrefill(now, w.arrival.Input+w.arrival.Output, cached)
	}
	if input > 0 && !w.moved.Load() {
		for i := range w.arrival.Sequences {
			each, output := w.sequence(i, w.output.Load())
			w.t.counter.CountFinish(now, each, output)
		}
	}
}
