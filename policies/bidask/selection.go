package bidask

import (
	"cmp"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// selection is the state of one SelectOffers.
type selection struct {
	sel       *selector
	situation *stageView
	limit     int
	own       int                    // index of the replica's stage, −1 for none
	open      [][]policies.ReplicaID // replicas to ask, by stage; nil until prepare
	unsold    []candidate            // not for sale yet; longest first after prepare
	leaving   policies.Tokens        // total length of what is for sale
	offers    []offer
}

// prepare does what only an offer needs: most scans make none.
func (c *selection) prepare() {
	if c.open != nil {
		return
	}
	c.open = make([][]policies.ReplicaID, len(c.situation.Plan.Stages))
	for k, stage := range c.situation.Plan.Stages {
		for _, id := range stage.Replicas {
			if id != c.sel.cfg.Self && c.situation.Available(id) {
				c.open[k] = append(c.open[k], id)
			}
		}
	}
	// Longest first: they are the furthest above their stage's end and take the longest
	// to migrate.
	slices.SortFunc(c.unsold, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.Length, a.Length), cmp.Compare(a.Request, b.Request))
	})
}

// addOffer offers a request unless it has a cooldown, no replica is available or there
// are enough offers. chain lists the stages to try in turn.
func (c *selection) addOffer(r candidate, cause policies.MigrationCause, chain []int) bool {
	last := c.sel.cooldowns[offerReason{r.Request, cause}]
	if len(c.offers) >= c.limit || c.situation.Now < last.until {
		return false
	}
	chain = slices.DeleteFunc(chain, func(k int) bool { return len(c.candidates(r, k)) == 0 })
	if len(chain) == 0 {
		return false
	}
	c.offers = append(c.offers, offer{
		Migration:  policies.Migration{Request: r.Request, Length: r.Length, Cause: cause},
		Candidates: c.candidates(r, chain[last.tries%len(chain)]),
	})
	c.leaving += r.Length
	return true
}

// byFrontEnd stands, in a chain of stages, for the replica of a request's front end alone.
const byFrontEnd = -1

// candidates returns the replicas of a stage that can be asked to run a request.
func (c *selection) candidates(r candidate, stage int) []policies.ReplicaID {
	open := c.openOf(r, stage)
	if r.CanRunOn == nil {
		return open
	}
	var fit []policies.ReplicaID
	for _, id := range open {
		if r.CanRunOn(id) {
			fit = append(fit, id)
		}
	}
	return fit
}

// offerMatching offers the requests that match want, in order, and removes them from
// unsold.
func (c *selection) offerMatching(cause policies.MigrationCause, chain func(candidate) []int, want func(candidate) bool) {
	if !slices.ContainsFunc(c.unsold, want) {
		return
	}
	c.prepare()
	c.unsold = slices.DeleteFunc(c.unsold, func(r candidate) bool { return want(r) && c.addOffer(r, cause, chain(r)) })
}

// openOf returns the replicas of a stage that can be asked.
func (c *selection) openOf(r candidate, stage int) []policies.ReplicaID {
	if stage != byFrontEnd {
		return c.open[stage]
	}
	k := c.situation.Plan.StageOfReplica(r.FrontEnd)
	if k < c.situation.Plan.StageOf(r.Length) || !slices.Contains(c.open[k], r.FrontEnd) {
		return nil
	}
	return []policies.ReplicaID{r.FrontEnd}
}

func (c *selection) selectDrain() {
	if len(c.situation.Plan.Stages) == 0 {
		return
	}
	c.offerMatching(policies.Drain, c.stagesFor, func(candidate) bool { return true })
}

func (c *selection) selectPrefill() {
	if len(c.situation.Plan.Stages) == 0 {
		return
	}
	c.offerMatching(policies.Prefill, func(r candidate) []int { return append([]int{byFrontEnd}, c.stagesFor(r)...) }, func(candidate) bool { return true })
}

// stagesFor lists all stages: the one that holds the request's length, the longer ones, the
// shorter ones.
func (c *selection) stagesFor(r candidate) (chain []int) {
	at := c.situation.Plan.StageOf(r.Length)
	for k := at; k < len(c.open); k++ {
		chain = append(chain, k)
	}
	for k := at - 1; k >= 0; k-- {
		chain = append(chain, k)
	}
	return chain
}

func (c *selection) selectGrowth() {
	end := c.bucketEnd(c.situation.Plan.Stages[c.own].High)
	c.offerMatching(policies.Growth, func(r candidate) []int { return []int{c.situation.Plan.StageOf(r.Length)} },
		func(r candidate) bool { return r.Length >= end && c.situation.Plan.StageOf(r.Length) > c.own })
}

// bucketEnd returns the end of the bucket that contains t.
func (c *selection) bucketEnd(t policies.Tokens) policies.Tokens {
	at, found := slices.BinarySearch(c.sel.cfg.BucketEdges, t)
	if found {
		at++
	}
	if at >= len(c.sel.cfg.BucketEdges) {
		return t
	}
	return c.sel.cfg.BucketEdges[at]
}

func (c *selection) selectSpill() {
	if c.situation.Capacity <= 0 || c.sel.cfg.SpillPercent > 100 {
		return
	}
	full := c.situation.Capacity / 100 * policies.Tokens(c.sel.cfg.SpillPercent)
	want := func(r candidate) bool {
		return c.situation.KV-c.leaving > full && c.longEnoughHere(r)
	}
	if !slices.ContainsFunc(c.unsold, want) {
		return
	}
	c.prepare()
	chain := []int{c.own}
	for k := c.own + 1; k < len(c.open); k++ {
		if len(c.open[k]) > 0 {
			chain = append(chain, k)
			break
		}
	}
	// The longest requests are the nearest to the next stage, and one of them frees more
	// than many short ones; the last one may free more than is needed.
	c.offerMatching(policies.Spill, func(candidate) []int { return slices.Clone(chain) }, want)
}

func (c *selection) selectOutliers() {
	if !c.situation.MeanKnown || c.sel.cfg.Detector == nil {
		return
	}
	excess := c.sel.cfg.Detector.Excess(c.situation.Held, c.situation.Mean)
	c.offerMatching(policies.Outlier, func(candidate) []int { return []int{c.own} },
		func(r candidate) bool {
			return r.Length > 0 && r.Length <= excess-c.leaving && c.longEnoughHere(r)
		})
}

// selectCheaper offers the request whose move saves most, to the replica where it costs least.
func (c *selection) selectCheaper() {
	if len(c.offers) > 0 || c.limit < 1 {
		return // what was just offered still counts as running here
	}
	movable := slices.DeleteFunc(slices.Clone(c.unsold), func(r candidate) bool {
		return c.situation.Now < c.sel.cooldowns[offerReason{r.Request, policies.Cheaper}].until || !c.longEnoughHere(r)
	})
	at, to, ok := c.situation.FindMove(movable)
	if !ok {
		return
	}
	r := movable[at]
	c.offers = append(c.offers, offer{
		Migration:  policies.Migration{Request: r.Request, Length: r.Length, Cause: policies.Cheaper},
		Candidates: []policies.ReplicaID{to},
	})
}

// longEnoughHere reports whether a request has been here long enough to be rebalanced.
// Its epoch grows with every migration.
func (c *selection) longEnoughHere(r candidate) bool {
	migrations := 0
	if r.Epoch > 1 {
		migrations = int(min(r.Epoch-1, maxDoublings))
	}
	return c.situation.Now-r.Since >= firstCooldown<<migrations
}
