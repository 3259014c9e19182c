package trace

import (
	"math"
	"math/rand/v2"
	"sort"

	"github.com/cascadeinfer/cascade/policies"
)

// maxRecent bounds the conversations kept open, whose list every next turn is
// compared with.
const maxRecent = 1 << 14

// redraws bounds how often a length outside its class's range is drawn again
// before it is moved to the range's end.
const redraws = 64

// source draws the requests of one class.
type source struct {
	class Class
	rng   *rand.Rand
	pick  picker
	ids   *uint64  // next free block id, shared by all classes
	head  []uint64 // blocks of the system prompt
	// open holds the latest prompts, a ring of at most class.Prefix.Recent.
	open   []turn
	oldest int
}

// turn is the state of a conversation: its last prompt.
type turn struct {
	input  policies.Tokens
	prefix []uint64
}

func newSource(c Class, rng *rand.Rand, ids *uint64) *source {
	weights := make([]float64, len(c.Lengths))
	for i, l := range c.Lengths {
		weights[i] = l.Weight
	}
	s := &source{class: c, rng: rng, pick: newPicker(weights), ids: ids}
	s.head = s.grow(nil, int(c.Prefix.System/BlockTokens))
	return s
}

// next draws a request without its arrival.
func (s *source) next() Request {
	r := Request{}
	r.Input, r.Output = s.lengths()
	p := s.class.Prefix
	if p.System == 0 && p.Continue == 0 {
		return r
	}
	want := blocks(r.Input)
	shared := s.head[:min(len(s.head), int(r.Input/BlockTokens))]
	last := -1
	if p.Continue > 0 && s.rng.Float64() < p.Continue {
		if last = s.previous(r.Input); last >= 0 {
			// Only whole blocks of the turn before are a prefix of this one.
			if whole := int(s.open[last].input / BlockTokens); whole > len(shared) {
				shared = s.open[last].prefix[:whole]
			}
		}
	}
	r.Prefix = s.grow(shared, want)
	s.keep(turn{r.Input, r.Prefix}, last)
	return r
}

// lengths draws from the mixture until both lengths are inside their ranges.
func (s *source) lengths() (input, output policies.Tokens) {
	for range redraws {
		l := s.class.Lengths[s.pick.pick(s.rng)]
		a, b := s.rng.NormFloat64(), s.rng.NormFloat64()
		x := l.Input + l.InputSD*a
		y := l.Output + l.OutputSD*(l.Corr*a+math.Sqrt(1-l.Corr*l.Corr)*b)
		input, output = round(x), round(y)
		if s.class.Input.holds(input) && s.class.Output.holds(output) {
			return input, output
		}
	}
	return s.class.Input.clamp(input), s.class.Output.clamp(output)
}

// round turns a logarithm into tokens, at most MaxTokens+1.
func round(x float64) policies.Tokens {
	return policies.Tokens(math.Round(math.Min(math.Exp(x), float64(MaxTokens+1))))
}

func (r Range) holds(t policies.Tokens) bool { return t >= r.Min && t <= r.Max }

func (r Range) clamp(t policies.Tokens) policies.Tokens { return min(max(t, r.Min), r.Max) }

// previous finds the open conversation whose last prompt, grown by a drawn
// length, comes closest to input; −1 when none is short enough.
func (s *source) previous(input policies.Tokens) int {
	p := s.class.Prefix
	target := float64(input) - math.Exp(p.Growth+p.GrowthSD*s.rng.NormFloat64())
	best, distance := -1, math.Inf(1)
	for i, t := range s.open {
		if t.input > input {
			continue
		}
		if d := math.Abs(float64(t.input) - target); d < distance {
			best, distance = i, d
		}
	}
	return best
}

// keep puts a turn into the open conversations: in place of the turn it
// continues, or of the oldest one.
func (s *source) keep(t turn, last int) {
	switch {
	case last >= 0:
		s.open[last] = t
	case len(s.open) < s.class.Prefix.Recent:
		s.open = append(s.open, t)
	case len(s.open) > 0:
		s.open[s.oldest] = t
		s.oldest = (s.oldest + 1) % len(s.open)
	}
}

// grow returns the shared blocks followed by fresh ones up to n.
func (s *source) grow(shared []uint64, n int) []uint64 {
	all := make([]uint64, n)
	for i := copy(all, shared); i < n; i++ {
		all[i] = *s.ids
		*s.ids++
	}
	return all
}

// picker draws an index in proportion to weights.
type picker struct{ cumulated []float64 }

func newPicker(weights []float64) picker {
	p := picker{make([]float64, len(weights))}
	sum := 0.0
	for i, w := range weights {
		sum += w
		p.cumulated[i] = sum
	}
	return p
}

func (p picker) pick(rng *rand.Rand) int {
	last := len(p.cumulated) - 1
	x := rng.Float64() * p.cumulated[last]
	return min(sort.SearchFloat64s(p.cumulated, x), last)
}
