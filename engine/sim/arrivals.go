package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/place"
)

// arrivalsInterval is how long a replica collects the requests that it accepts before it sends them to the front ends.
const arrivalsInterval = 2 * time.Millisecond

// sentArrival is a request that a replica has accepted, from a front end that knows of it.
type sentArrival struct {
	request place.Waiting
	front   int
}

// noteArrival records that a replica accepts a request, for those front ends that have not sent it.
func (c *cascade) noteArrival(q *request, at int) {
	q.arrived = c.now()
	if !c.priced {
		return
	}
	if c.arrived == nil {
		c.arrived = make([][]sentArrival, len(c.fronts))
	}
	f := c.fronts[at]
	one := place.Resident{Input: q.Input, Arrived: q.arrived, Cached: f.replica.cachedTokens(q.Request)}
	f.peers.DescribeOwn(&c.state, []place.Resident{one})
	w := c.state.Waiting[0]
	if q.front != at {
		f.peers.AddArrivals(c.now(), f.id, []place.Waiting{w})
	}
	if len(c.arrived[at]) == 0 {
		c.sim.queue.push(event{at: c.sim.now + arrivalsInterval, kind: arrivalsDue, index: int32(at)})
	}
	c.arrived[at] = append(c.arrived[at], sentArrival{w, q.front})
}

// flushArrivals sends the other front ends what a replica has accepted.
func (c *cascade) flushArrivals(at int) {
	if c.arrived == nil || len(c.arrived[at]) == 0 {
		return
	}
	for i, f := range c.fronts {
		if i == at || f.replica.failed {
			continue
		}
		c.arrivals = c.arrivals[:0]
		for _, a := range c.arrived[at] {
			if a.front != i {
				c.arrivals = append(c.arrivals, a.request)
			}
		}
		f.peers.AddArrivals(c.now(), c.fronts[at].id, c.arrivals)
	}
	c.arrived[at] = c.arrived[at][:0]
}

// describeState sets c.state to what a replica has.
func (c *cascade) describeState(f *front) {
	c.queue = append(c.queue[:0], f.replica.resident...)
	slices.SortFunc(c.queue, func(a, b *request) int { return cmp.Compare(a.index, b.index) })
	c.living = c.living[:0]
	for _, q := range c.queue {
		c.living = append(c.living, place.Resident{
			Input: q.Input, Cached: q.hit, Output: policies.Tokens(q.tokens), Arrived: q.arrived, Prefilling: q.resumed,
		})
	}
	f.peers.DescribeOwn(&c.state, c.living)
	c.state.Compact()
	c.state.Used = f.replica.usedKV()
	c.state.At = policies.Micros(f.replica.endedAt / time.Microsecond)
}
