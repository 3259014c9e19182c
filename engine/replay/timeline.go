package replay

import (
	"time"
)

// A timeline counts in slots, whose width doubles when they do not suffice: times are precise to half a
// thousandth of the run.
const (
	timeSlots = 4096
	slotWidth = time.Millisecond // of the first slots
)

type slotTimeline struct {
	slots []timeSlot
	width time.Duration
}

// timeSlot is one part of the run.
type timeSlot struct {
	arrivals, ends, completed int
	tokens                    float64 // generated
	output, input             float64 // tokens of the requests that completed
	ttft                      float64 // Σ over the requests due
	first                     int     // how many those are
}

func (s *timeSlot) add(o timeSlot) {
	s.arrivals, s.ends, s.completed, s.first = s.arrivals+o.arrivals, s.ends+o.ends, s.completed+o.completed, s.first+o.first
	s.tokens, s.output, s.input, s.ttft = s.tokens+o.tokens, s.output+o.output, s.input+o.input, s.ttft+o.ttft
}

// timeSlot returns the slot of a time. It is valid until the next call.
func (t *slotTimeline) slot(at time.Duration) *timeSlot {
	if t.slots == nil {
		t.slots, t.width = make([]timeSlot, timeSlots), slotWidth
	}
	for at/t.width >= timeSlots {
		for i := range timeSlots / 2 {
			t.slots[i] = t.slots[2*i]
			t.slots[i].add(t.slots[2*i+1])
		}
		clear(t.slots[timeSlots/2:])
		t.width *= 2
	}
	return &t.slots[max(0, at/t.width)]
}

// rates sets the rates of the time in which 99 % of the requests ended.
func (t *slotTimeline) rates(ended uint64, m *Metrics) {
	var sum timeSlot
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

// line returns the timeline of a run of so many seconds.
func (t *slotTimeline) line(seconds float64) []Moment {
	if !(seconds > 0) {
		return nil
	}
	width := seconds / moments
	line := make([]Moment, moments)
	sums := make([]timeSlot, moments)
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
