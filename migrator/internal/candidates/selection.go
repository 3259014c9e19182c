package candidates

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// choice is one Choose at work.
type choice struct {
	b       *Selector
	s       *Situation
	most    int
	own     int                    // the own stage, −1 for none
	open    [][]policies.ReplicaID // whom to ask, by stage
	free    []Resident             // not for sale yet, the longest first
	leaving policies.Tokens        // the length of what is for sale
	offers  []Offer
}

// add offers a request unless it rests, there is nobody, or there are enough.
// chain are the stages to try, one after the other.
func (c *choice) add(r Resident, cause policies.MigrationCause, chain []int) bool {
	last := c.b.rests[r.Request]
	if last.cause != cause {
		last = rest{}
	}
	if len(c.offers) >= c.most || c.s.Now < last.until {
		return false
	}
	chain = slices.DeleteFunc(chain, func(k int) bool { return len(c.candidates(r, k)) == 0 })
	if len(chain) == 0 {
		return false
	}
	c.offers = append(c.offers, Offer{
		Handover:   policies.Migration{Request: r.Request, Length: r.Length, Cause: cause},
		Candidates: c.candidates(r, chain[last.tries%len(chain)]),
	})
	c.leaving += r.Length
	return true
}

// candidates are the replicas of a stage that can be asked to run a request.
func (c *choice) candidates(r Resident, stage int) []policies.ReplicaID {
	if r.CanRunOn == nil {
		return c.open[stage]
	}
	var fit []policies.ReplicaID
	for _, id := range c.open[stage] {
		if r.CanRunOn(id) {
			fit = append(fit, id)
		}
	}
	return fit
}

// take offers requests in order, as long as want says so, and takes them out of
// free.
func (c *choice) take(cause policies.MigrationCause, chain func(Resident) []int, want func(Resident) bool) {
	c.free = slices.DeleteFunc(c.free, func(r Resident) bool { return want(r) && c.add(r, cause, chain(r)) })
}

func (c *choice) drain() {
	if len(c.open) == 0 {
		return
	}
	c.take(policies.Drain, func(r Resident) []int {
		at := c.s.Plan.StageOf(r.Length)
		var chain []int
		for k := at; k < len(c.open); k++ {
			chain = append(chain, k)
		}
		for k := at - 1; k >= 0; k-- {
			chain = append(chain, k)
		}
		return chain
	}, func(Resident) bool { return true })
}

func (c *choice) growth() {
	end := c.slack(c.s.Plan.Stages[c.own].High)
	c.take(policies.Growth, func(r Resident) []int { return []int{c.s.Plan.StageOf(r.Length)} },
		func(r Resident) bool { return r.Length >= end && c.s.Plan.StageOf(r.Length) > c.own })
}

// slack returns the end of the bucket that begins at t, or holds it.
func (c *choice) slack(t policies.Tokens) policies.Tokens {
	at, found := slices.BinarySearch(c.b.cfg.BucketEdges, t)
	if found {
		at++
	}
	if at >= len(c.b.cfg.BucketEdges) {
		return t
	}
	return c.b.cfg.BucketEdges[at]
}

func (c *choice) spill() {
	if c.s.Capacity <= 0 || c.b.cfg.SpillPercent > 100 {
		return
	}
	full := c.s.Capacity / 100 * policies.Tokens(c.b.cfg.SpillPercent)
	chain := []int{c.own}
	for k := c.own + 1; k < len(c.open); k++ {
		if len(c.open[k]) > 0 {
			chain = append(chain, k)
			break
		}
	}
	// The longest are the nearest to the next stage, and one of them makes more
	// room than many short ones; the last one may make more than is needed.
	c.take(policies.Spill, func(Resident) []int { return slices.Clone(chain) },
		func(r Resident) bool { return c.s.Held+c.s.Promised-c.leaving > full && c.settled(r) })
}

func (c *choice) outlier() {
	if !c.s.MeanKnown || c.b.cfg.Detector == nil {
		return
	}
	excess := c.b.cfg.Detector.Excess(c.s.Held, c.s.Mean)
	c.take(policies.Outlier, func(Resident) []int { return []int{c.own} },
		func(r Resident) bool { return r.Length > 0 && r.Length <= excess-c.leaving && c.settled(r) })
}

// settled reports whether a request has been here for long enough to be moved
// for the sake of balance. Its epoch grows with every move.
func (c *choice) settled(r Resident) bool {
	moves := 0
	if r.Epoch > 1 {
		moves = int(min(r.Epoch-1, longestRests))
	}
	return c.s.Now-r.Since >= c.b.cfg.Cooldown<<moves
}
