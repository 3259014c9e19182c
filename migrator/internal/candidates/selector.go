// Package candidates decides which of a replica's running requests go up for sale,
// and to which replicas. The market (policies/bidask) finds the buyer.
//
// It is a pure function of a Situation and of what became of earlier offers,
// which a Book remembers. It moves nothing, and a plan's change by itself makes
// it offer nothing but requests above the end of their stage: one below its
// stage's start stays.
//
// # The rules, in the order in which they are looked at
//
//  1. Drain: a draining replica offers all that may move, to the stage that
//     holds the length; when that stage has nobody or nobody bids, to the next
//     longer ones, then to the shorter ones.
//  2. Growth (paper, section "Decentralized Load (Re)Balancing", inter-stage
//     hand-over): a request that has outgrown its stage by a bucket is offered
//     to the stage that holds its length. Without a bid it stays.
//  3. Spill: a replica whose KV is nearly used up, by what runs and what waits,
//     offers what is too much: to its own stage, and when that has nobody or
//     nobody bids, to the next longer one.
//  4. Outlier (same section, intra-stage rebalancing): a replica that holds far
//     more than its stage's mean offers the excess to its stage, in requests
//     that are no longer than it.
//
// # Invariants
//
//  1. Only requests that may move are offered, each once at a time.
//  2. A request that was returned rests before it is offered for the same cause
//     again; each time twice as long, up to a bound. Drains rest evenly.
//  3. A request is rebalanced (Spill, Outlier) only after it has been here for
//     a time that doubles with its epoch, so that none is passed to and fro.
//     Growth only goes to longer stages, and needs no such rest.
//  4. What is for sale already counts as gone: a replica never offers more than
//     its excess.
package candidates

import (
	"cmp"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// The defaults of a Config.
const (
	DefaultCooldown     = policies.Second
	DefaultSpillPercent = 90 // percent of the KV capacity
	maxDoublings        = 5  // doublings of a rest
)

// Config sets a Book up.
type Config struct {
	// Self is the own replica. Required.
	Self policies.ReplicaID
	// Detector finds outliers; nil means that there are none.
	Detector policies.Detector
	// BucketEdges are the length buckets, ascending. A request is offered once it has
	// left the bucket that begins at its stage's end. Without edges there is no
	// such slack.
	BucketEdges []policies.Tokens
	// Cooldown is the first pause before a request that was returned is offered
	// again, and how long one that has just come is not rebalanced. 0 means 1 s.
	Cooldown policies.Micros
	// SpillPercent is the share of the KV capacity, in percent, above which a replica
	// spills. 0 means 90; above 100 it never does.
	SpillPercent int
}

// Resident is a request that runs on the own engine.
type Resident struct {
	Request string
	Length  policies.Tokens
	Pinned  policies.PinReason
	Epoch   policies.Epoch
	Since   policies.Micros // when it came here
	ForSale bool            // it is for sale already
	// CanRunOn reports whether a replica can run it; nil: every one can.
	CanRunOn func(policies.ReplicaID) bool
}

// Situation is what a replica knows of itself and the others at one moment.
type Situation struct {
	Now  policies.Micros
	Plan policies.Plan // the zero Plan while none is known
	// Available reports whether a replica can be asked: its address is known and it
	// does not drain. The own one need not be excluded.
	Available func(policies.ReplicaID) bool
	Draining  bool
	Capacity  policies.Tokens // of KV; 0 while unknown
	Held      policies.Tokens
	Promised  policies.Tokens // accepted and not yet running
	Mean      policies.Tokens // of Held over the own stage, as of a moment ago
	MeanKnown bool
	Residents []Resident
}

// Offer is a request to be sold, and who may buy it.
type Offer struct {
	Handover   policies.Migration
	Candidates []policies.ReplicaID // shared by offers: not to be changed
}

// Selector remembers what became of earlier offers. It is not safe for concurrent
// use.
type Selector struct {
	cfg       Config
	cooldowns map[string]cooldown
}

// cooldown is the time until a request is offered again.
type cooldown struct {
	cause policies.MigrationCause
	tries int // returns in a row
	until policies.Micros
}

// New returns an empty Book. The error is a *policies.Violation that names the
// bad field.
func New(c Config) (*Selector, error) {
	switch {
	case c.Self == "":
		return nil, &policies.Violation{Subject: "offer", Invariant: "Self must name the own replica"}
	case c.Cooldown < 0 || c.SpillPercent < 0:
		return nil, &policies.Violation{Subject: "offer", Invariant: "Rest and Full must not be negative"}
	case !slices.IsSorted(c.BucketEdges):
		return nil, &policies.Violation{Subject: "offer", Invariant: "Edges must ascend"}
	}
	if c.Cooldown == 0 {
		c.Cooldown = DefaultCooldown
	}
	if c.SpillPercent == 0 {
		c.SpillPercent = DefaultSpillPercent
	}
	return &Selector{cfg: c, cooldowns: make(map[string]cooldown)}, nil
}

// RecordReturn takes note that a request was not sold.
func (b *Selector) RecordReturn(now policies.Micros, h policies.Migration, why bidask.ReturnReason) {
	if why == bidask.ReturnWithdrawn {
		delete(b.cooldowns, h.Request)
		return
	}
	r := b.cooldowns[h.Request]
	if r.cause != h.Cause {
		r = cooldown{cause: h.Cause}
	}
	pause := b.cfg.Cooldown << min(r.tries, maxDoublings)
	if h.Cause == policies.Drain {
		pause = b.cfg.Cooldown
	}
	r.tries++
	r.until = now + pause
	b.cooldowns[h.Request] = r
}

// StillValid reports whether the reason for an offer still holds.
func (b *Selector) StillValid(s *Situation, h policies.Migration) bool {
	switch h.Cause {
	case policies.Drain:
		return s.Draining
	case policies.Growth:
		own := s.Plan.StageOfReplica(b.cfg.Self)
		return s.Draining || own >= 0 && s.Plan.StageOf(h.Length) > own
	}
	return true
}

// SelectOffers returns at most that many offers, the most urgent ones first.
func (b *Selector) SelectOffers(s *Situation, most int) []Offer {
	b.forgetDeparted(s.Residents)
	c := &selection{sel: b, situation: s, limit: most, own: s.Plan.StageOfReplica(b.cfg.Self), open: make([][]policies.ReplicaID, len(s.Plan.Stages))}
	for k, stage := range s.Plan.Stages {
		for _, id := range stage.Replicas {
			if id != b.cfg.Self && s.Available(id) {
				c.open[k] = append(c.open[k], id)
			}
		}
	}
	for _, r := range s.Residents {
		switch {
		case r.ForSale:
			c.leaving += r.Length
		case r.Pinned == policies.NotPinned:
			c.unsold = append(c.unsold, r)
		}
	}
	// The longest first: they are the furthest above their stage's end, and take
	// the longest to move.
	slices.SortFunc(c.unsold, func(a, b Resident) int {
		return cmp.Or(cmp.Compare(b.Length, a.Length), cmp.Compare(a.Request, b.Request))
	})
	if s.Draining {
		c.selectDrain()
		return c.offers
	}
	if c.own < 0 {
		return nil
	}
	c.selectGrowth()
	c.selectSpill()
	c.selectOutliers()
	return c.offers
}

// forgetDeparted drops the rests of requests that are not here any more.
func (b *Selector) forgetDeparted(residents []Resident) {
	if len(b.cooldowns) == 0 {
		return
	}
	here := make(map[string]bool, len(residents))
	for _, r := range residents {
		here[r.Request] = true
	}
	for id := range b.cooldowns {
		if !here[id] {
			delete(b.cooldowns, id)
		}
	}
}
