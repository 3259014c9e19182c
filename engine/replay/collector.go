package replay

import (
	"math"
	"math/bits"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// Collector computes the figures of a run, in memory that does not grow with the number of its requests. It gets each
// arrival, the tokens as they are generated and each request's end, in any order. Percentiles are within Error, and
// deciles are cut at the bounds of length buckets, 16 to an octave. The zero value is empty.
type Collector struct {
	lengths []lengthGroup // by length bucket
	clock   slotTimeline
	ended   uint64
	last    float64 // time of the last end
}

// lengthGroup is the requests of one length bucket.
type lengthGroup struct {
	requests, failed            int
	ttft, tpot, normalised, e2e histogram
}

// AddArrival counts a request that is due.
func (c *Collector) AddArrival(at time.Duration) { c.clock.slot(at).arrivals++ }

// AddTokens counts generated tokens.
func (c *Collector) AddTokens(at time.Duration, tokens int) {
	c.clock.slot(at).tokens += float64(tokens)
}

// AddEnd counts a request that ended. Its Due, Input, E2E and Error are required; without an Error
// also TTFT, Last and Tokens.
func (c *Collector) AddEnd(r *Record) {
	end := r.Due + r.E2E
	c.ended++
	c.last = math.Max(c.last, end)
	b := bucketOf(r.Input)
	for len(c.lengths) <= b {
		c.lengths = append(c.lengths, lengthGroup{})
	}
	g, s := &c.lengths[b], c.clock.slot(durationOf(end))
	g.requests++
	s.ends++
	if r.Error != "" {
		g.failed++
		return
	}
	s.completed++
	s.output += float64(r.Tokens)
	s.input += float64(r.Input)
	g.ttft.add(r.TTFT)
	g.e2e.add(r.E2E)
	if r.Tokens > 0 {
		g.normalised.add(r.E2E / float64(r.Tokens))
		due := c.clock.slot(durationOf(r.Due))
		due.ttft += r.TTFT
		due.first++
	}
	if t, ok := r.TPOT(); ok {
		g.tpot.add(t)
	}
}

func durationOf(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Metrics returns the figures so far.
func (c *Collector) Metrics() Metrics { return c.metrics(c.last) }

// metrics returns the figures of a run that has taken so many seconds.
func (c *Collector) metrics(seconds float64) Metrics {
	m := Metrics{Seconds: seconds}
	all := c.merge(0, policies.Unbounded)
	m.Latency = all.Latency
	c.clock.rates(c.ended, &m)
	c.deciles(&m)
	bounds := ClassBounds()
	for i, high := range bounds[1:] {
		m.Classes = append(m.Classes, withoutPercentiles(c.merge(bounds[i], high)))
	}
	m.Timeline = c.clock.line(seconds)
	return m
}

// merge summarises the requests of the buckets in [low, high), which must be bounds of buckets.
func (c *Collector) merge(low, high policies.Tokens) Group {
	out := Group{Low: low, High: high}
	var ttft, tpot, normalised, e2e []*histogram
	for b := range c.lengths {
		if g := &c.lengths[b]; lowest(b) >= low && lowest(b) < high {
			out.Requests += g.requests
			out.Failed += g.failed
			ttft, tpot = append(ttft, &g.ttft), append(tpot, &g.tpot)
			normalised, e2e = append(normalised, &g.normalised), append(e2e, &g.e2e)
		}
	}
	out.Latency = Latency{TTFT: summariseHistograms(ttft), TPOT: summariseHistograms(tpot), Normalised: summariseHistograms(normalised), E2E: summariseHistograms(e2e)}
	return out
}

func withoutPercentiles(g Group) Group {
	for _, s := range [...]*Summary{&g.TTFT, &g.TPOT, &g.Normalised, &g.E2E} {
		s.Percentiles = nil
	}
	return g
}

// deciles divides the requests by prompt length into ten groups that are as equal as the buckets allow;
// there may be fewer.
func (c *Collector) deciles(m *Metrics) {
	left := 0 // requests in no group yet
	for _, g := range c.lengths {
		left += g.requests
	}
	low, in := policies.Tokens(-1), 0
	for b, g := range c.lengths {
		if g.requests == 0 {
			continue
		}
		if low < 0 {
			low = lowest(b)
		}
		if in += g.requests; in*(10-len(m.Deciles)) < left {
			continue
		}
		m.Deciles = append(m.Deciles, withoutPercentiles(c.merge(low, lowest(b+1))))
		low, left, in = -1, left-in, 0
	}
}

// Length buckets: one for each length below 32, then 16 to an octave.
const (
	exactLengths = 32
	perOctave    = 16
)

// bucketOf returns the bucket of a length.
func bucketOf(length policies.Tokens) int {
	if length < exactLengths {
		return int(max(0, length))
	}
	octave := bits.Len64(uint64(length)) - 1
	return exactLengths + (octave-5)*perOctave + int(uint64(length)>>(octave-4))&(perOctave-1)
}

// lowest returns the smallest length of a bucket.
func lowest(b int) policies.Tokens {
	if b < exactLengths {
		return policies.Tokens(b)
	}
	octave, part := (b-exactLengths)/perOctave+5, (b-exactLengths)%perOctave
	return policies.Tokens((perOctave + part) << (octave - 4))
}
