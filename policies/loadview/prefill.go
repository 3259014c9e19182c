package loadview

import "github.com/cascadeinfer/cascade/policies"

const (
	// prefillPause is for how long no request is placed at a prefill replica after a move
	// from it has failed; it doubles with every further one, up to maxPauseDoublings times.
	prefillPause      = policies.Second
	maxPauseDoublings = 6
)

// IsPrefill reports whether this replica is a prefill replica.
func (b *View) IsPrefill() bool {
	return b.prefillSelf
}

// Prefills reports whether requests of this replica's front end may start at prefill replicas.
func (b *View) Prefills() bool {
	return b.cfg.Prefill != nil && b.own >= 0 && len(b.prefill) > 0
}

// placePrefill returns the prefill replica that computes a request's prompt before it moves
// here, nil if this replica should.
func (b *View) placePrefill(now policies.Micros, r policies.Request, own policies.Candidate) *peerEntry {
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
		b.addSample(now, b.prefill, 0, 0, func(now policies.Micros, e *peerEntry) bool { return meant(e) && can(now, e) })
		b.addSample(now, b.prefill, 0, 0, func(now policies.Micros, e *peerEntry) bool { return !meant(e) && can(now, e) })
		for i := range b.sites {
			x := b.prefillRange(b.sites[i].ID)
			b.sites[i].Low, b.sites[i].High = x.Low, x.High
		}
	}
	return b.peers[b.cfg.Prefill.Place(policies.Arrival{Request: r, Own: own, Peers: b.sites})]
}

// SetPrefillRanges sets which prompts each prefill replica is meant for; one without a range is
// meant for all. The View keeps the list, which must not be changed afterwards.
func (b *View) SetPrefillRanges(ranges []policies.PrefillRange) {
	b.ranges = ranges
}

// prefillRange returns which prompts a prefill replica is meant for.
func (b *View) prefillRange(id policies.ReplicaID) policies.PrefillRange {
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
func (b *View) RecordPrefillMove(now policies.Micros, from policies.ReplicaID, moved bool) {
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
