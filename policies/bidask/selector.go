package bidask

import (
	"maps"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

const (
	// defaultSpillPercent is the default of OfferRules.SpillPercent.
	defaultSpillPercent = 90
	// firstCooldown is the first delay before a returned request is offered again, and the time for which a request
	// that just arrived is not rebalanced.
	firstCooldown = policies.Second
	maxDoublings  = 5 // of a cooldown
	// prefillShare is the divisor of the cooldown for requests at a prefill replica: each
	// of their tokens there delays the prompts of others.
	prefillShare = 4
)

// OfferRules configures a selector.
type OfferRules struct {
	// Self is this replica. Required.
	Self policies.ReplicaID
	// Detector finds outliers; nil disables the rule.
	Detector policies.Detector
	// BucketEdges are the length buckets, ascending. A request is offered once it has
	// left the bucket that starts at its stage's end. Without edges it is offered at
	// the stage's end.
	BucketEdges []policies.Tokens
	// SpillPercent is the percentage of the KV capacity above which a replica spills.
	// 0 means 90; above 100 it never spills.
	SpillPercent int
}

// candidate is a request that runs on this replica's engine.
type candidate struct {
	Resident int // its index in Situation.Residents
	Request  string
	// FrontEnd is the replica whose front end serves the request's client.
	FrontEnd policies.ReplicaID
	Length   policies.Tokens
	Pinned   policies.PinReason
	Epoch    policies.Epoch
	Since    policies.Micros // when it arrived here
	ForSale  bool            // it is for sale already
	// CanRunOn reports whether a replica can run the request; nil: all can.
	CanRunOn func(policies.ReplicaID) bool
}

// stageView is a replica's knowledge of itself and its peers at one moment.
type stageView struct {
	Now  policies.Micros
	Plan policies.Plan // the zero Plan if unknown
	// Available reports whether a replica can be asked: its address is known and it is
	// not draining. It need not exclude this replica.
	Available func(policies.ReplicaID) bool
	Draining  bool
	Prefill   bool            // this is a prefill replica
	Capacity  policies.Tokens // of KV; 0 if unknown
	KV        policies.Tokens // in use, where a shared prefix counts once
	Held      policies.Tokens // Σ length over running requests
	Mean      policies.Tokens // of Held over the replica's stage, slightly old
	MeanKnown bool
	Residents []candidate
	// FindMove returns which of the movable residents saves most where it moves, and where that is; nil: none moves
	// because it costs less elsewhere, and outliers are offered by load.
	FindMove func(movable []candidate) (int, policies.ReplicaID, bool)
}

// offer is a request for sale and its possible buyers.
type offer struct {
	Migration  policies.Migration
	Candidates []policies.ReplicaID // shared between offers; must not be changed
}

// selector selects which of a replica's running requests go up for sale, and to
// which replicas. The market (Machine) finds the buyer.
//
// The selection is a pure function of a stageView and of the results of earlier offers,
// which it remembers. It migrates nothing. A change of the plan alone makes it
// offer only requests above the end of their stage: one below its stage's start stays.
//
// Its owner makes a stageView every tenth of a second, passes each offer to Machine.Step as
// Offered, and each Return of the machine to RecordReturn. It is not safe for concurrent use.
//
// The rules, in order:
//
//  1. Drain: a draining replica offers all requests that may migrate, to the stage that
//     holds their length; if that stage has no available replica or no bid comes, to the
//     next longer stages, then to the shorter ones.
//  2. Growth (paper, section "Decentralized Load (Re)Balancing", inter-stage hand-over): a
//     request that has outgrown its stage by a bucket is offered to the stage that holds
//     its length. Without a bid it stays.
//  3. Spill: a replica whose KV is nearly used up by running requests offers the excess: to
//     its own stage, and if that has no available replica or no bid comes, to the next longer
//     one. Waiting requests do not count: it is cheaper that they wait for memory than that
//     copies of running ones evict what a buyer has cached.
//  4. Prefill: a prefill replica offers every request that has its first token: to the
//     replica of the request's front end if that serves such lengths, else to the stage that
//     holds its length, to longer ones and to shorter ones. It offers nothing for another
//     reason, except that it drains.
//  5. Cheaper: a request that costs less at another replica, by the prices of placement, is
//     offered to that replica, one in each scan.
//  6. Outlier (same section, intra-stage rebalancing), where there are no prices: a replica that
//     holds far more than its stage's mean offers the excess to its stage, in requests that are
//     no longer than it.
//
// Invariants:
//
//  1. Only requests that may migrate are offered, each at most once at a time.
//  2. A request that was returned has a cooldown before it is offered for the same cause
//     again; each time twice as long, up to a bound. Drains have a constant cooldown, and so
//     have prefills, a shorter one, unless the transfer failed: it may always fail.
//  3. A request is rebalanced (Spill, Cheaper, Outlier) only after it has been here for a time that
//     doubles with its epoch, so that it does not ping-pong. Growth only goes to longer
//     stages and needs no such delay.
//  4. Requests for sale count as gone: a replica never offers more than its excess.
type selector struct {
	cfg       OfferRules
	cooldowns map[offerReason]cooldown
	unsold    []candidate // scratch memory of SelectOffers
}

// offerReason says which request is offered, and why.
type offerReason struct {
	request string
	cause   policies.MigrationCause
}

// cooldown is the delay before a request is offered for the same cause again.
type cooldown struct {
	tries int // consecutive returns
	until policies.Micros
}

// newSelector returns a selector without history. The error is a *policies.Violation that names
// the invalid field.
func newSelector(c OfferRules) (*selector, error) {
	switch {
	case c.Self == "":
		return nil, &policies.Violation{Subject: "candidates", Invariant: "Self must name this replica"}
	case c.SpillPercent < 0:
		return nil, &policies.Violation{Subject: "candidates", Invariant: "SpillPercent must not be negative"}
	case !slices.IsSorted(c.BucketEdges):
		return nil, &policies.Violation{Subject: "candidates", Invariant: "BucketEdges must ascend"}
	}
	if c.SpillPercent == 0 {
		c.SpillPercent = defaultSpillPercent
	}
	return &selector{cfg: c, cooldowns: make(map[offerReason]cooldown)}, nil
}

// RecordReturn records that a request was not sold.
func (b *selector) RecordReturn(now policies.Micros, h policies.Migration, why ReturnReason) {
	reason := offerReason{h.Request, h.Cause}
	if why == ReturnWithdrawn {
		delete(b.cooldowns, reason)
		return
	}
	r := b.cooldowns[reason]
	pause := firstCooldown << min(r.tries, maxDoublings)
	switch h.Cause {
	case policies.Drain:
		pause = firstCooldown
	case policies.Prefill:
		if why != ReturnTransferFailed {
			pause = firstCooldown / prefillShare
		}
	}
	r.tries++
	r.until = now + pause
	b.cooldowns[reason] = r
}

// StillValid reports whether the reason for an offer still holds.
func (b *selector) StillValid(s *stageView, h policies.Migration) bool {
	switch h.Cause {
	case policies.Drain:
		return s.Draining
	case policies.Prefill:
		return s.Prefill
	case policies.Growth:
		own := s.Plan.StageOfReplica(b.cfg.Self)
		return s.Draining || own >= 0 && s.Plan.StageOf(h.Length) > own
	}
	return true
}

// SelectOffers returns at most that many offers, the most urgent first.
func (b *selector) SelectOffers(s *stageView, most int) []offer {
	b.forgetDeparted(s.Residents)
	c := &selection{sel: b, situation: s, limit: most, own: s.Plan.StageOfReplica(b.cfg.Self), unsold: b.unsold[:0]}
	for _, r := range s.Residents {
		switch {
		case r.ForSale:
			c.leaving += r.Length
		case r.Pinned == policies.NotPinned:
			c.unsold = append(c.unsold, r)
		}
	}
	b.unsold = c.unsold // the memory
	if s.Draining {
		c.selectDrain()
		return c.offers
	}
	if s.Prefill {
		c.selectPrefill()
		return c.offers
	}
	if c.own < 0 {
		return nil
	}
	c.selectGrowth()
	c.selectSpill()
	if s.FindMove != nil {
		c.selectCheaper()
		return c.offers
	}
	c.selectOutliers()
	return c.offers
}

// forgetDeparted removes the cooldowns of requests that are not here any more.
func (b *selector) forgetDeparted(residents []candidate) {
	if len(b.cooldowns) == 0 {
		return
	}
	here := make(map[string]bool, len(residents))
	for _, r := range residents {
		here[r.Request] = true
	}
	maps.DeleteFunc(b.cooldowns, func(r offerReason, _ cooldown) bool { return !here[r.request] })
}
