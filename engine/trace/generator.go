package trace

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// Generator draws open-loop traces: arrivals that do not wait for answers,
// lengths from one or several classes of requests, and shared prefixes.
//
// Arrivals are a renewal process of Gamma gaps whose rate drifts: each minute
// has its own rate, Gamma distributed around the mean. Lengths of a class are
// a mixture of bivariate lognormals, so that answers depend on prompts as in
// the trace the class was fitted to. Fit makes a Generator from any trace,
// Named returns the shipped ones.
type Generator struct {
	Name   string `json:"name"`
	Source string `json:"source"` // where the figures come from
	// Rate is the mean arrival rate in requests/s, of all classes together.
	Rate float64 `json:"rate"`
	// GapCV is the coefficient of variation of the gaps inside a minute; 0
	// means 1, a Poisson process.
	GapCV float64 `json:"gap_cv"`
	// Swing is the coefficient of variation of the rate from minute to minute;
	// 0 means a steady rate.
	Swing   float64 `json:"swing"`
	Classes []Class `json:"classes"`

	// Requests and Duration say how much to draw: at most Requests, none after
	// Duration. One of them must be set.
	Requests int           `json:"-"`
	Duration time.Duration `json:"-"`
	// Seed decides everything random; equal generators give equal traces.
	Seed uint64 `json:"-"`
}

// Class is one kind of request in a mix.
type Class struct {
	Name   string `json:"name"`
	Source string `json:"source"` // the trace it was fitted to
	// Share is the class's part of the requests; shares are relative to their
	// sum.
	Share   float64     `json:"share"`
	Lengths []Lognormal `json:"lengths"` // mixture; weights are relative to their sum
	// Input and Output bound the lengths drawn.
	Input  Range  `json:"input"`
	Output Range  `json:"output"`
	Prefix Prefix `json:"prefix"`
}

// Lognormal is one component of a mixture: ln(input) and ln(output) are
// normal with these means, deviations and correlation.
type Lognormal struct {
	Weight   float64 `json:"weight"`
	Input    float64 `json:"input"`  // mean of ln(input tokens)
	Output   float64 `json:"output"` // mean of ln(output tokens)
	InputSD  float64 `json:"input_sd"`
	OutputSD float64 `json:"output_sd"`
	Corr     float64 `json:"corr"` // in (−1, 1)
}

// Range is a closed range of lengths.
type Range struct {
	Min policies.Tokens `json:"min"`
	Max policies.Tokens `json:"max"`
}

// Prefix says how prompts of a class share prefixes. The zero value shares
// nothing and names no blocks.
type Prefix struct {
	// System is the length of the beginning that all prompts of the class
	// share. Only its whole blocks count.
	System policies.Tokens `json:"system"`
	// Continue is the share of requests that are a conversation's next turn:
	// their prompt starts with the whole blocks of the turn before.
	Continue float64 `json:"continue"`
	// Growth and GrowthSD are the mean and deviation of ln(tokens that the
	// prompt grew since the turn before).
	Growth   float64 `json:"growth"`
	GrowthSD float64 `json:"growth_sd"`
	// Recent is how many of the class's latest conversations may be continued.
	Recent int `json:"recent"`
}

// minute is how long a rate lasts before the next one is drawn.
const minute = time.Minute

func (g Generator) validate() error {
	bad := func(field string, value any, must string) error {
		return fmt.Errorf("generator %q: %s is %v; it must be %s", g.Name, field, value, must)
	}
	switch {
	case !(g.Rate > 0) || math.IsInf(g.Rate, 0):
		return bad("rate", g.Rate, "a positive number of requests/s")
	case !(g.GapCV >= 0 && g.GapCV <= 100):
		return bad("gap_cv", g.GapCV, "in 0 … 100")
	case !(g.Swing >= 0 && g.Swing <= 10):
		return bad("swing", g.Swing, "in 0 … 10")
	case g.Requests < 0 || g.Requests > maxRequests:
		return bad("requests", g.Requests, fmt.Sprintf("in 0 … %d", maxRequests))
	case g.Duration < 0 || g.Duration > maxArrival:
		return bad("duration", g.Duration, fmt.Sprintf("in 0 … %v", maxArrival))
	case g.Requests == 0 && g.Duration == 0:
		return fmt.Errorf("generator %q: set a number of requests or a duration", g.Name)
	case len(g.Classes) == 0:
		return fmt.Errorf("generator %q: it needs at least one class", g.Name)
	}
	for i, c := range g.Classes {
		if err := c.validate(); err != nil {
			return fmt.Errorf("generator %q: class %d (%s): %w", g.Name, i, c.Name, err)
		}
	}
	return nil
}

func (c Class) validate() error {
	if !(c.Share > 0) || math.IsInf(c.Share, 0) {
		return fmt.Errorf("share is %v; it must be positive", c.Share)
	}
	for _, r := range [...]struct {
		name string
		Range
	}{{"input", c.Input}, {"output", c.Output}} {
		if r.Min < 1 || r.Max < r.Min || r.Max > MaxTokens {
			return fmt.Errorf("%s range %d … %d must lie in 1 … %d and not be empty", r.name, r.Min, r.Max, MaxTokens)
		}
	}
	if len(c.Lengths) == 0 {
		return errors.New("lengths has no component")
	}
	for i, l := range c.Lengths {
		for _, x := range [...]float64{l.Weight, l.Input, l.Output, l.InputSD, l.OutputSD} {
			if !(x >= 0 && x <= 100) {
				return fmt.Errorf("lengths[%d] has %v where a number in 0 … 100 belongs", i, x)
			}
		}
		if !(l.Weight > 0) || !(math.Abs(l.Corr) < 1) {
			return fmt.Errorf("lengths[%d]: weight %v must be positive and corr %v inside −1 … 1", i, l.Weight, l.Corr)
		}
	}
	p := c.Prefix
	if p.System < 0 || p.System > MaxTokens || !(p.Continue >= 0 && p.Continue <= 1) || !(math.Abs(p.Growth) <= 100) || !(p.GrowthSD >= 0 && p.GrowthSD <= 100) || p.Recent < 0 || p.Recent > maxRecent {
		return fmt.Errorf("prefix %+v: system must lie in 0 … %d, continue in 0 … 1, growth in −100 … 100, growth_sd in 0 … 100, recent in 0 … %d", p, MaxTokens, maxRecent)
	}
	return nil
}

// Generate draws a trace. The error names a bad field.
func (g Generator) Generate() ([]Request, error) {
	d, err := g.Open()
	if err != nil {
		return nil, err
	}
	requests, err := Collect(d)
	if err != nil {
		return nil, err
	}
	if len(requests) == 0 {
		return nil, fmt.Errorf("generator %q: %w within %v", g.Name, ErrEmpty, g.Duration)
	}
	return requests, nil
}

// Drawing draws the requests of a Generator, one by one. Its memory does not grow with their
// number, except by the conversations that may be continued.
type Drawing struct {
	g       Generator
	when    *arrivals
	which   *rand.Rand
	sources []*source
	pick    picker
	ids     uint64 // of blocks so far
	count   int
}

// Open starts to draw a trace. The error names a bad field.
func (g Generator) Open() (*Drawing, error) {
	if err := g.validate(); err != nil {
		return nil, err
	}
	// Arrivals, classes and lengths have streams of their own, so that a
	// change of one class leaves the arrivals of a comparison alone.
	d := &Drawing{g: g, when: newArrivals(g, rand.New(rand.NewPCG(g.Seed, 1))), which: rand.New(rand.NewPCG(g.Seed, 2))}
	shares := make([]float64, len(g.Classes))
	for i, c := range g.Classes {
		shares[i] = c.Share
		d.sources = append(d.sources, newSource(c, rand.New(rand.NewPCG(g.Seed, uint64(i)+3)), &d.ids))
	}
	d.pick = newPicker(shares)
	return d, nil
}

// Next returns the next request, in order of arrival, and io.EOF after the last one.
func (d *Drawing) Next() (Request, error) {
	if d.g.Requests > 0 && d.count == d.g.Requests {
		return Request{}, io.EOF
	}
	at := d.when.next()
	if d.g.Duration > 0 && at > d.g.Duration || at > maxArrival {
		return Request{}, io.EOF
	}
	if d.count == maxRequests {
		return Request{}, fmt.Errorf("generator %q: more than %d requests in %v; lower the rate or the duration", d.g.Name, maxRequests, d.g.Duration)
	}
	d.count++
	r := d.sources[d.pick.pick(d.which)].next()
	r.At = at
	return r, nil
}
