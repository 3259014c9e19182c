package latencystats

import (
	"time"

	"github.com/cascadeinfer/cascade/engine/replay"
)

// A timeline counts in slots, whose width doubles when they do not suffice: times are precise to half a
// thousandth of the run.
const (
	slots     = 4096
	slotWidth = time.Millisecond // of the first slots
	// moments is the number of parts of a timeline in a result, as in package replay.
	moments = 60
)

type timeline struct {
	slots []slot
	width time.Duration
}

// slot is one part of the run.
type slot struct {
	arrivals, ends, completed int
	tokens                    float64 // generated
	output, input             float64 // tokens of the requests that completed
	ttft                      float64 // Σ over the requests due
	first                     int     // how many those are
}

func (s *slot) add(o slot) {
	s.arrivals, s.ends, s.completed, s.first = s.arrivals+o.arrivals, s.ends+o.ends, s.completed+o.completed, s.first+o.first
	s.tokens, s.output, s.input, s.ttft = s.tokens+o.tokens, s.output+o.output, s.input+o.input, s.ttft+o.ttft
}

// slot returns the slot of a time. It is valid until the next call.
func (t *timeline) slot(at time.Duration) *slot {
	if t.slots == nil {
		t.slots, t.width = make([]slot, slots), slotWidth
	}
	for at/t.width >= slots {
		for i := range slots / 2 {
			t.slots[i] = t.slots[2*i]
			t.slots[i].add(t.slots[2*i+1])
		}
		clear(t.slots[slots/2:])
		t.width *= 2
	}
	return &t.slots[max(0, at/t.width)]
}

// rates sets the rates of the time in which 99 % of the requests ended.
func (t *timeline) rates(ended uint64, m *replay.Metrics) {
	var sum slot
	for i, s := range t.slots {
		sum.add(s)
		if 100*uint64(sum.ends) < 99*ended || ended == 0 {
			continue
		}
		m.MostSeconds = min((time.Duration(i+1) * t.width).Seconds(), m.Seconds)
		break
	}
	if m.MostSeconds > 0 {
		m.RequestsPerSecond, m.TokensPerSecond, m.InputPerSecond = float64(sum.completed)/m.MostSeconds, sum.output/m.MostSeconds, sum.input/m.MostSeconds
	}
}

// moments returns the timeline of a run of so many seconds.
func (t *timeline) moments(seconds float64) []replay.Moment {
	if !(seconds > 0) {
		return nil
	}
	width := seconds / moments
	line := make([]replay.Moment, moments)
	sums := make([]slot, moments)
	for i, s := range t.slots {
		middle := (float64(i) + 0.5) * t.width.Seconds()
		sums[min(int(middle/width), moments-1)].add(s)
	}
	outstanding := 0.0
	for i, s := range sums {
		m := &line[i]
		m.At = (float64(i) + 0.5) * width
		m.Arrivals, m.Tokens = float64(s.arrivals)/width, s.tokens/width
		m.Outstanding = outstanding + float64(s.arrivals-s.ends)/2
		outstanding += float64(s.arrivals - s.ends)
		if s.first > 0 {
			m.TTFT = s.ttft / float64(s.first)
		}
	}
	return line
}
