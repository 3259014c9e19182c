package place

import (
	"math"
	"math/bits"

	"github.com/cascadeinfer/cascade/policies"
)

// Prices are the coefficients of an engine's iteration model (policies.Cost) as integers, so that native
// and Wasm decide alike. The zero value: unknown.
type Prices struct {
	Iteration int64 // picoseconds per iteration
	Sequence  int64 // picoseconds per decoding sequence and iteration
	Prompt    int64 // picoseconds per uncached prompt token
	Prompt2   int64 // attoseconds per squared prompt token
	Held      int64 // femtoseconds per KV token attended to and iteration
	// Copied is picoseconds per token whose KV is copied from another replica. 0: none is copied, and
	// a replica computes what it has not cached.
	Copied int64
}

// NewPrices returns the prices of a cost model, which is valid, for replicas that copy nothing.
func NewPrices(c policies.Cost) Prices {
	return Prices{
		Iteration: units(c.D0, 1e12), Sequence: units(c.D1, 1e12), Prompt: units(c.D2, 1e12), Prompt2: units(c.D3, 1e18), Held: units(c.D4, 1e15),
	}
}

// WithCopies returns the prices for replicas that copy the KV of a token in so many seconds; 0 or what is
// not a number: they copy nothing.
func (p Prices) WithCopies(secondsPerToken float64) Prices {
	p.Copied = units(secondsPerToken, 1e12)
	return p
}

// units rounds seconds to units of which a second has so many.
func units(seconds, perSecond float64) int64 {
	x := math.Round(seconds * perSecond)
	if !(x > 0) {
		return 0
	}
	return int64(min(x, 1<<62))
}

// Picoseconds, femtoseconds and attoseconds in a microsecond.
const (
	pico  = 1_000_000
	femto = 1e9
	atto  = 1e12
)

// Bounds of what a candidate may claim: larger numbers count as these, so that no sum overflows.
const (
	maxTokens  = 1 << 30
	maxRunning = 1 << 20
)

// prompt is the time to compute uncached prompt tokens, without the attention to those before them.
func (p Prices) prompt(n policies.Tokens) policies.Micros { return product(n, p.Prompt, pico) }

// prompt2 is the time of attention in prompts, of the differences of squares.
func (p Prices) prompt2(n policies.Tokens) policies.Micros { return product(n, p.Prompt2, atto) }

// decode is how much longer an iteration takes with one more sequence of a length.
func (p Prices) decode(length policies.Tokens) policies.Micros {
	return add(product(1, p.Sequence, pico), product(length, p.Held, femto))
}

// iteration is the time of an iteration of so many sequences that hold so many tokens.
func (p Prices) iteration(running, held policies.Tokens) policies.Micros {
	return add(add(product(1, p.Iteration, pico), product(running, p.Sequence, pico)), product(held, p.Held, femto))
}

// clamp bounds a number of tokens.
func clamp(n policies.Tokens) policies.Tokens { return min(max(n, 0), maxTokens) }

// never is the largest time.
const never policies.Micros = math.MaxInt64

// product returns n·price in microseconds, of which the price's unit has per; at most never. n and price
// are not negative.
func product(n policies.Tokens, price int64, per uint64) policies.Micros {
	high, low := bits.Mul64(uint64(n), uint64(max(price, 0)))
	if high >= per {
		return never
	}
	micros, _ := bits.Div64(high, low, per)
	return policies.Micros(min(micros, uint64(never)))
}

// times returns t·n, at most never.
func times[N ~int64](t policies.Micros, n N) policies.Micros {
	return product(policies.Tokens(t), int64(n), 1)
}

// percent returns so many per cent of t, at most never.
func percent(t policies.Micros, n int) policies.Micros {
	return product(policies.Tokens(t), int64(max(n, 0)), 100)
}

// add returns the sum of two numbers that are not negative, at most the largest.
func add[N ~int64](a, b N) N {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
