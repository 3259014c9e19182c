package place

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// Place returns where a request starts: at a peer, or with the zero policies.Target here. steps are
// those of its prompt, as far as they are known; r.Cached is how much of it this replica
// holds. The Placer chooses from a sample and from the peers that hold most of the prompt.
//
// A request that cannot migrate later is placed by the length that it may grow to. A request
// for a LoRA adapter that this replica's engine lacks starts at a peer that has it, if any. A
// request that Config.Prefill gives to a prefill replica starts there, and moves here later.
func (b *Peers) Place(now policies.Micros, r policies.Request, steps []prefix.Step) policies.Target {
	if b.cfg.Placer == nil || len(b.stages) == 0 {
		b.sites = b.sites[:0] // of another request
		return b.placeHere(now, r)
	}
	grown := r
	if policies.Movable(r) != policies.NotPinned {
		grown.Output = max(r.Output, r.MaxOutput)
	}
	own := policies.Candidate{
		ID: b.cfg.Self, High: policies.Unbounded, Waiting: b.self.Waiting, Load: b.self.Total, Running: b.self.Running,
		Prefix: r.Cached, Draining: b.self.Draining || !b.adapters.CanServe(b.cfg.Self, r.Model),
	}
	if b.own >= 0 {
		own.Low, own.High = b.plan.Stages[b.own].Low, b.plan.Stages[b.own].High
	}
	if e := b.placePrefill(now, r, own); e != nil {
		b.forwards++
		to := b.placeAtPeer(now, e, r, 0)
		to.Prefill = true
		return to
	}
	id := b.askPlacer(now, grown, own, steps, b.fresh)
	outside := grown.Length() < own.Low || grown.Length() >= own.High
	priced := b.cfg.Engine != nil && len(b.sites) > 0
	if id == "" && (own.Draining || outside && !priced) {
		// It should not start here and no suitable peer has a recent load: choose among
		// those with an unknown load. Their prices are guesses, which beat no price that is known.
		id = b.askPlacer(now, grown, own, steps, func(policies.Micros, *peerEntry) bool { return true })
	}
	if e := b.peers[id]; e != nil && e.address != "" {
		b.forwards++
		to := b.placeAtPeer(now, e, r, b.prefixOf(id))
		if held := b.longestHeld(r); held > to.Cached {
			to.Held = held
		}
		return to
	}
	return b.placeHere(now, r)
}

// longestHeld returns how many of a request's first tokens the replica holds that has most of them, of this one
// and those that the Placer has just chosen from.
func (b *Peers) longestHeld(r policies.Request) policies.Tokens {
	held := r.Cached
	for i := range b.sites {
		held = max(held, b.sites[i].Prefix)
	}
	return held
}

// askPlacer lets the Placer choose from a sample of the peers that pass, and from those of
// them that hold most of the prompt.
func (b *Peers) askPlacer(now policies.Micros, r policies.Request, own policies.Candidate, steps []prefix.Step,
	pass func(policies.Micros, *peerEntry) bool) policies.ReplicaID {
	at := b.plan.StageOf(r.Length())
	b.sites = b.sites[:0]
	narrow := b.adapters.Restricts(r.Model)
	fits := func(now policies.Micros, e *peerEntry) bool {
		return pass(now, e) && (!narrow || b.adapters.CanServe(e.id, r.Model))
	}
	addStage := func(k int) { b.addSample(now, b.stages[k], b.plan.Stages[k].Low, b.plan.Stages[k].High, fits) }
	addStage(at)
	for k := at + 1; k < len(b.stages) && len(b.sites) < 2*b.sampleSize(); k++ {
		addStage(k)
	}
	for k := at - 1; k >= 0 && !narrow && policies.Movable(r) == policies.NotPinned; k-- {
		addStage(k) // It may start there; the market moves it later.
		if b.cfg.Engine == nil {
			break
		}
	}
	for k := at - 1; k >= 0 && narrow && len(b.sites) == 0; k-- {
		// The adapter is loaded in shorter stages only: use them.
		addStage(k)
		for i := range b.sites {
			b.sites[i].High = policies.Unbounded
		}
	}
	b.addPrefixes(now, at, steps, fits)
	b.price(now, &r, &own)
	return b.cfg.Placer.Place(policies.Arrival{Request: r, Own: own, Peers: b.sites})
}

// addSample adds a random sample of the replicas, which are for the lengths [low, high), to the
// sites.
func (b *Peers) addSample(now policies.Micros, all []*peerEntry, low, high policies.Tokens,
	pass func(policies.Micros, *peerEntry) bool) {
	if len(all) == 0 {
		return
	}
	start, found := b.rng.IntN(len(all)), 0
	for i := range min(len(all), maxExamined) {
		e := all[(start+i)%len(all)]
		if !b.open(now, e) || !pass(now, e) {
			continue
		}
		b.addSite(e, low, high)
		if found++; found == b.sampleSize() {
			return
		}
	}
}

// sampleSize is how many replicas of a stage the Placer chooses from.
func (b *Peers) sampleSize() int {
	if b.cfg.Engine != nil {
		return maxPriced
	}
	return b.cfg.SampleSize
}

// addSite adds a peer, which is for the lengths [low, high), to the sites.
func (b *Peers) addSite(e *peerEntry, low, high policies.Tokens) *policies.Candidate {
	b.sites = append(b.sites, policies.Candidate{
		ID: e.id, Low: low, High: high, Waiting: e.load.Waiting, Load: e.load.Total, Running: e.load.Running,
	})
	return &b.sites[len(b.sites)-1]
}

// Rescue returns where to continue a stream whose engine was lost: the least loaded replica
// of the stage that holds its length, else of a longer stage, else of a shorter one. Within
// a stage, replicas on other hosts than those that have been tried come first, and peers without a recent
// load last: where a host dies, its engines are lost one after the other. If none is left, the least
// loaded prefill replica continues the stream. It returns false if all have been tried.
func (b *Peers) Rescue(now policies.Micros, r policies.Request, tried []policies.ReplicaID) (policies.Target, bool) {
	b.sites = b.sites[:0] // of another request
	self := !b.self.Draining && !slices.Contains(tried, b.cfg.Self) && b.adapters.CanServe(b.cfg.Self, r.Model)
	at, ownRank := b.plan.StageOf(r.Length()), b.rankRescue(b.host, tried)
	for i := range len(b.stages) {
		k := at + i
		if k >= len(b.stages) {
			k = len(b.stages) - 1 - i // the shorter ones, longest first
		}
		e, rank := b.leastLoaded(now, b.stages[k], r, tried)
		switch here := self && k == b.own; {
		case here && (ownRank > rank || ownRank == rank && b.self.Total <= e.load.Total):
			return b.placeHere(now, r), true
		case e != nil:
			return b.placeAtPeer(now, e, r, 0), true
		}
	}
	if self {
		return b.placeHere(now, r), true
	}
	if e, _ := b.leastLoaded(now, b.prefill, r, tried); e != nil {
		return b.placeAtPeer(now, e, r, 0), true
	}
	return policies.Target{}, false
}

// leastLoaded returns the least loaded of the replicas that has not been tried, and its rank: 0 if its load is not
// known, otherwise that of its host.
func (b *Peers) leastLoaded(now policies.Micros, all []*peerEntry, r policies.Request,
	tried []policies.ReplicaID) (best *peerEntry, rank int) {
	if len(all) == 0 {
		return nil, 0
	}
	start := b.rng.IntN(len(all))
	for i := range all {
		e := all[(start+i)%len(all)]
		if !b.open(now, e) || slices.Contains(tried, e.id) || !b.adapters.CanServe(e.id, r.Model) {
			continue
		}
		n := 0
		if b.fresh(now, e) {
			n = b.rankRescue(e.host, tried)
		}
		if best == nil || n > rank || n == rank && n > 0 && e.load.Total < best.load.Total {
			best, rank = e, n
		}
	}
	return best, rank
}

// rankRescue ranks a host as the place of a rescue: 1 if a replica on it has been tried, 2 if none has or its name is
// not known.
func (b *Peers) rankRescue(host string, tried []policies.ReplicaID) int {
	if host != "" && slices.ContainsFunc(tried, func(id policies.ReplicaID) bool {
		if id == b.cfg.Self {
			return b.host == host
		}
		other := b.peers[id]
		return other != nil && other.host == host
	}) {
		return 1
	}
	return 2
}

// Forwards counts the requests that Place sent to a peer.
func (b *Peers) Forwards() uint64 {
	return b.forwards
}

const (
	// prefillPause is for how long no request is placed at a prefill replica after a move
	// from it has failed; it doubles with every further one, up to maxPauseDoublings times.
	prefillPause      = policies.Second
	maxPauseDoublings = 6
)

// IsPrefill reports whether this replica is a prefill replica.
func (b *Peers) IsPrefill() bool {
	return b.prefillSelf
}

// Prefills reports whether requests of this replica's front end may start at prefill replicas.
func (b *Peers) Prefills() bool {
	return b.cfg.Prefill != nil && b.own >= 0 && len(b.prefill) > 0
}

// placePrefill returns the prefill replica that computes a request's prompt before it moves
// here, nil if this replica should.
func (b *Peers) placePrefill(now policies.Micros, r policies.Request, own policies.Candidate) *peerEntry {
	misplaced := own.Draining || !r.Estimated && (r.Length() < own.Low || r.Length() >= own.High)
	if !b.Prefills() || misplaced || policies.Movable(r) != policies.NotPinned {
		return nil
	}
	can := func(now policies.Micros, e *peerEntry) bool {
		full := e.capacity > 0 && e.load.Total+r.Length() > e.capacity
		return !full && now >= e.retryAt && b.fresh(now, e) && b.adapters.CanServe(e.id, r.Model)
	}
	b.sites = b.sites[:0]
	if len(b.ranges) == 0 {
		b.addSample(now, b.prefill, 0, policies.Unbounded, can)
	} else {
		meant := func(e *peerEntry) bool {
			x := b.prefillRange(e.id)
			return x.Low <= r.Input-r.Cached && r.Input-r.Cached < x.High
		}
		for _, want := range [...]bool{true, false} {
			b.addSample(now, b.prefill, 0, 0, func(now policies.Micros, e *peerEntry) bool {
				return meant(e) == want && can(now, e)
			})
		}
		for i := range b.sites {
			x := b.prefillRange(b.sites[i].ID)
			b.sites[i].Low, b.sites[i].High = x.Low, x.High
		}
	}
	return b.peers[b.cfg.Prefill.Place(policies.Arrival{Request: r, Own: own, Peers: b.sites})]
}

// SetPrefillRanges sets which prompts each prefill replica is meant for; one without a range is
// meant for all. Peers keeps the list, which must not be changed afterwards.
func (b *Peers) SetPrefillRanges(ranges []policies.PrefillRange) {
	b.ranges = ranges
}

// prefillRange returns which prompts a prefill replica is meant for.
func (b *Peers) prefillRange(id policies.ReplicaID) policies.PrefillRange {
	for _, x := range b.ranges {
		if x.Replica == id {
			return x
		}
	}
	return policies.PrefillRange{Replica: id, High: policies.Unbounded}
}

// RecordPrefillMove records whether a request, or the KV of its prompt alone, moved here from
// the prefill replica that had computed its prompt. After a failure no request is placed there
// for a while: its prompt would be computed, and the request could not leave.
func (b *Peers) RecordPrefillMove(now policies.Micros, from policies.ReplicaID, moved bool) {
	e := b.peers[from]
	switch {
	case e == nil:
	case moved:
		e.failures, e.retryAt = 0, 0
	default:
		e.retryAt = now + prefillPause<<min(e.failures, maxPauseDoublings)
		e.failures++
	}
}
