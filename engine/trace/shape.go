package trace

import (
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// Shape says how to make a trace fit a replay. The zero value changes
// nothing but the origin: the first request arrives at 0.
type Shape struct {
	// Rate is the mean arrival rate to stretch or squeeze the trace to, in
	// requests/s; 0 keeps the trace's own. A trace without arrival times needs
	// it and gets Poisson arrivals at this rate.
	Rate float64
	// Speed divides the arrival times: 2 doubles the load. 0 means 1. It does
	// not go together with Rate.
	Speed float64
	// Spread is the window of the source's clock: each arrival is moved later
	// by a random part of it. Mooncake's clock ticks every 3 s. 0 moves none.
	Spread time.Duration
	// MaxInput drops requests with a longer prompt; 0 drops none.
	MaxInput policies.Tokens
	// MaxLength drops requests whose prompt and answer together are longer; 0
	// drops none. Set it to the model's context.
	MaxLength policies.Tokens
	// From and Until drop requests that arrive before and after, on the trace's
	// own clock and before Rate and Speed; an Until of 0 drops none.
	From, Until time.Duration
	// Limit keeps the first Limit requests; 0 keeps all.
	Limit int
	// Seed makes the random parts; equal seeds give equal traces.
	Seed uint64
}

// ErrNoRate says that the trace has no arrival times and the Shape no Rate.
var ErrNoRate = errors.New("the trace has no arrival times: give a rate in requests/s")

func (s Shape) validate() error {
	for _, f := range [...]struct {
		name  string
		value float64
	}{
		{"rate (requests/s)", s.Rate}, {"speed", s.Speed}, {"spread (s)", s.Spread.Seconds()}, {"from (s)", s.From.Seconds()}, {"until (s)", s.Until.Seconds()},
		{"limit", float64(s.Limit)}, {"max input", float64(s.MaxInput)}, {"max length", float64(s.MaxLength)},
	} {
		if !(f.value >= 0) || math.IsInf(f.value, 0) {
			return fmt.Errorf("shape the trace: %s is %v; it must be finite and not negative", f.name, f.value)
		}
	}
	if s.Rate > 0 && s.Speed > 0 {
		return errors.New("shape the trace: rate and speed both set the load; give one of them")
	}
	return nil
}

// Apply is Stream for a trace in memory, in the order of arrival, which it leaves
// alone (prefixes are shared). The error is ErrNoRate, ErrEmpty when nothing is left, or names a
// bad field.
func (s Shape) Apply(requests []Request) ([]Request, error) {
	from, err := s.Stream(func() (Source, error) {
		next := 0
		return sourceFunc(func() (Request, error) {
			if next == len(requests) {
				return Request{}, io.EOF
			}
			next++
			return requests[next-1], nil
		}), nil
	})
	if err != nil {
		return nil, err
	}
	shaped, err := Collect(from)
	if err == nil && len(shaped) == 0 {
		err = fmt.Errorf("shape the trace: %w", ErrEmpty)
	}
	return shaped, err
}

// Rate is the trace's mean arrival rate in requests/s, by its gaps; 0 for a
// trace of one instant or without times.
func Rate(requests []Request) float64 {
	if !timed(requests) {
		return 0
	}
	span := (requests[len(requests)-1].At - requests[0].At).Seconds()
	if span <= 0 {
		return 0
	}
	return float64(len(requests)-1) / span
}
