package partition

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
)

// DefaultTau is the time constant of forgetting in seconds, for a planner that runs
// every ten seconds: long enough for some thousand requests, short enough to follow
// the drift of a day.
const DefaultTau = 40

// renormalise is the age of the counters' time origin, in τ, at which the sums are
// scaled back. e^64 ≈ 6·10²⁷ keeps the sums of any traffic far inside a float64.
const renormalise = 64

// cell holds one bucket's sums, in the order of policies.Flow.Columns. They are adjacent in
// memory because an event touches several sums of few buckets.
type cell [7]float64

// The indices of a cell.
const (
	arrivals = iota
	tokens
	reads
	prefill
	prefill2
	weight
	crossings
)

// FlowCounter counts the work that arrives at one replica, by length bucket, with
// exponential forgetting. Plans are made from these rates.
//
// It counts events as they happen (a request arrives, a sequence grows, a request
// ends) and needs no final length, so long requests count before they have finished.
// It does not measure load: requests in flight depend on the plan in force, these
// rates do not.
//
// Invariant: an event of weight x at time t contributes exactly
// x·exp(−(now−t)/τ)/τ to its rate, divided by the share of the window that has been
// observed.
//
// Its methods take the present time in
// seconds on any monotonic scale; an earlier time than before counts as the time
// before. An event costs O(1), or O(buckets crossed), and allocates nothing.
//
// Decay is lazy: instead of every cell shrinking over time, later events weigh
// exp((now−origin)/τ) more, and reads divide by that factor.
//
// A FlowCounter is not safe for concurrent use.
type FlowCounter struct {
	edges []policies.Tokens
	tau   float64
	cells []cell
	seen  uint64

	started     bool
	start       float64 // when counting began
	now         float64 // latest time seen
	origin      float64 // when an event weighs 1
	eventWeight float64 // weight of an event at now
}

// NewFlowCounter returns a counter over the edges, which it keeps and which must satisfy the
// invariants of policies.Flow. tau is the time constant in seconds; 0 or less means
// DefaultTau. The observed window starts with the first call of any method: call Rates
// once at start-up if the time before the first request should count.
func NewFlowCounter(edges []policies.Tokens, tau float64) *FlowCounter {
	if !(tau > 0) {
		tau = DefaultTau
	}
	return &FlowCounter{edges: edges, tau: tau, cells: make([]cell, len(edges))}
}

// advance sets the present time and updates the weight of an event.
func (c *FlowCounter) advance(now float64) {
	if !c.started {
		c.started, c.start, c.now, c.origin, c.eventWeight = true, now, now, now, 1
		return
	}
	if !(now > c.now) {
		return
	}
	c.now = now
	age := (now - c.origin) / c.tau
	if age > renormalise {
		c.scale(math.Exp(-age))
		c.origin, c.eventWeight = now, 1
		return
	}
	c.eventWeight = math.Exp(age)
}

// scale multiplies every sum by f.
func (c *FlowCounter) scale(f float64) {
	for b := range c.cells {
		for i := range c.cells[b] {
			c.cells[b][i] *= f
		}
	}
}

// CountArrival counts a request with a prompt of input tokens, of which cached need no
// prefill. cached outside [0, input] counts as the nearer end.
func (c *FlowCounter) CountArrival(now float64, input, cached policies.Tokens) {
	c.CountPrefill(now, input, cached)
	c.cells[policies.BucketOf(c.edges, max(input, 0))][arrivals] += c.eventWeight
	c.seen++
}

// CountPrefill counts a prompt that is computed without an arrival: that of a request
// which resumes on a replica without its KV. cached is as in CountArrival.
func (c *FlowCounter) CountPrefill(now float64, input, cached policies.Tokens) {
	c.advance(now)
	input = max(input, 0)
	cached = min(max(cached, 0), input)
	i, h := float64(input), float64(cached)
	x := &c.cells[policies.BucketOf(c.edges, input)]
	x[prefill] += float64(c.eventWeight * (i - h))
	x[prefill2] += float64(c.eventWeight * float64((i-h)*(i+h)))
}

// CountTokens counts n generated tokens that brought a sequence to length: the tokens
// at lengths length−n+1 … length. Each reads as many KV tokens as the sequence then
// has. Lengths below 1 do not exist and are not counted.
func (c *FlowCounter) CountTokens(now float64, length policies.Tokens, n int) {
	c.advance(now)
	if n < 1 || length < 1 {
		return
	}
	low := max(length-policies.Tokens(n)+1, 1)
	for b := policies.BucketOf(c.edges, length); ; b-- {
		x := &c.cells[b]
		first := max(low, c.edges[b])
		count := float64(length - first + 1)
		x[tokens] += float64(c.eventWeight * count)
		x[reads] += float64(c.eventWeight * float64(count*(float64(first)+float64(length))/2))
		if low > c.edges[b] || b == 0 {
			return
		}
		x[crossings] += c.eventWeight // it grew from edges[b]−1 to edges[b]
		if low == first {
			return
		}
		length = first - 1
	}
}

// CountFinish counts a request that ended with input prompt tokens and output generated
// tokens, each of which gets the weight 1/output. A request without output has no
// weight.
func (c *FlowCounter) CountFinish(now float64, input, output policies.Tokens) {
	c.advance(now)
	if output < 1 {
		return
	}
	input = max(input, 0)
	each := c.eventWeight / float64(output)
	for length := input + output; length > input; {
		b := policies.BucketOf(c.edges, length)
		first := max(input+1, c.edges[b])
		c.cells[b][weight] += float64(each * float64(length-first+1))
		length = first - 1
	}
}

// Rates returns the rates at now. Until a few τ have been observed, the sums are
// divided by the observed part of the window, 1 − exp(−t/τ), so that rates are
// unbiased from the start, though noisy. The result shares only the edges with the
// counter.
func (c *FlowCounter) Rates(now float64) policies.Flow {
	c.advance(now)
	f := policies.NewFlow(c.edges)
	f.Seen = c.seen
	observed := -math.Expm1(-(c.now - c.start) / c.tau)
	if !(observed > 0) {
		return f // no time has passed: there is no rate yet
	}
	per := 1 / float64(c.eventWeight*float64(c.tau*observed))
	columns := f.Columns()
	for b, x := range c.cells {
		for i, column := range columns {
			column[b] = x[i] * per
		}
	}
	return f
}
