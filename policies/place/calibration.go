package place

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
)

// Calibration learns how slow an engine is in relation to its Engine: a profile may be wrong, a GPU throttled, and
// speculative decoding generates several tokens in an iteration. It compares how long the tokens took that the
// residents generated between two calls of Observe with how long a Model of the same residents takes. The zero value
// has learnt nothing.
//
// It is robust and slow: one comparison changes the ratio by e^maxSurprise at most before it is averaged with those
// of the last memory seconds. A pair of calls counts only if no prompt waited at the first one, because nothing says
// how much of such a prompt was computed.
type Calibration struct {
	log     float64 // of the ratio
	weight  float64 // seconds that were compared, at most memory
	at      policies.Micros
	used    policies.Tokens // of the KV cache, as of at
	before  []Resident      // as of at
	matched []match         // scratch
	model   Model
}

// match is a resident of two calls in succession.
type match struct {
	before    *Resident
	generated float64 // since then, by each of its sequences
	stays     bool
}

const (
	// MaxSlowdown bounds the ratio, and 1/MaxSlowdown: beyond it, the profile is of something else.
	MaxSlowdown = 3.0

	least       = 0.1 // of the logarithm
	maxSurprise = 0.5
	memory      = 20.0 // seconds
	prior       = 2.0  // seconds for which the profile is taken to have been right
)

// Slowdown returns how many times as long iterations take as the Engine says, from 1/MaxSlowdown to MaxSlowdown. It
// is 1 for an engine that differs by less than a tenth, so that replicas that are as fast have equal prices.
func (c *Calibration) Slowdown() float64 {
	if math.Abs(c.log) < least {
		return 1
	}
	return math.Exp(c.log)
}

// Observe learns from the residents of an engine, in the order of their arrival, and from At and Used of their state.
func (c *Calibration) Observe(e *Engine, s *State, residents []Resident) {
	if s.At > c.at {
		c.compare(e, s.At, residents)
		c.at, c.used, c.before = s.At, s.Used, append(c.before[:0], residents...)
	}
}

// compare compares what was generated until a time with what the model expects.
func (c *Calibration) compare(e *Engine, at policies.Micros, residents []Resident) {
	iterations := c.match(residents)
	if iterations == 0 {
		return
	}
	c.replay(e, at, residents, iterations)
	took, expected := seconds(at-c.at)/iterations, (c.model.now-seconds(c.at))/c.model.iter
	surprise := math.Log(took/expected) - c.log
	if !(math.Abs(surprise) < math.Inf(1)) {
		return
	}
	window := seconds(at - c.at)
	c.weight = min(c.weight+window, memory)
	c.log += min(max(surprise, -maxSurprise), maxSurprise) * min(1, window/(c.weight+prior))
	c.log = min(max(c.log, -math.Log(MaxSlowdown)), math.Log(MaxSlowdown))
}

// match matches the residents with those before, and returns how many iterations those had that generate tokens; 0
// if that is not known.
func (c *Calibration) match(residents []Resident) (iterations float64) {
	c.matched = c.matched[:0]
	next, n := 0, 0
	for i := range c.before {
		b := &c.before[i]
		if !b.runs() || b.Arrived > c.at {
			return 0 // the engine may have been idle until it came
		}
		m := match{before: b}
		for at := next; at < len(residents); at++ {
			if r := &residents[at]; r.Arrived == b.Arrived && r.Input == b.Input {
				next, m.stays = at+1, true
				m.generated = float64(r.Output-b.Output) / float64(max(b.Sequences, 1))
				break
			}
		}
		if c.matched = append(c.matched, m); m.generated > 0 {
			iterations += m.generated
			n++
		}
	}
	return iterations / float64(max(n, 1))
}

// replay runs the model of the residents until a time. Those that have ended are taken to have had half of the
// iterations.
func (c *Calibration) replay(e *Engine, at policies.Micros, residents []Resident, iterations float64) {
	c.model.Reset(e, c.at)
	for i := range c.matched {
		m := &c.matched[i]
		left := policies.Unbounded
		if !m.stays {
			left = policies.Tokens(iterations / 2)
		}
		c.model.AddRunning(m.before.running(left))
	}
	if c.used > 0 {
		c.model.SetUsed(c.used)
	}
	for i := range residents {
		if r := &residents[i]; r.Arrived > c.at && float64(r.Output) <= iterations {
			c.model.AddWaiting(Waiting{Length: r.Input, Cached: r.Cached, Output: policies.Unbounded, Ready: r.Arrived})
		}
	}
	c.model.Advance(at)
}
