// Package place chooses the replica where a request without a first token starts: the
// replica whose front end accepted it, or one peer. Policy, Cheapest and Prefill are the rules;
// Peers knows the peers that they choose from and what a request costs there, and DecidePull
// decides whether the beginning of the prompt is copied from another replica.
//
// A placement forwards the request; no KV is transferred, and the front end keeps the client's
// stream. It corrects what the proxy could not know (the exact length, the present
// queue, cached prefixes) and never overrides another front end: a request that was
// forwarded once stays.
package place

import (
	"cmp"

	"github.com/cascadeinfer/cascade/policies"
)

// The defaults of a Policy.
const (
	DefaultQueue  policies.Tokens = 8192
	DefaultPrefix policies.Tokens = 1024
)

// Policy forwards a request for the first of these reasons that holds:
//
//  1. the own replica is draining,
//  2. the request's exact length is outside the own stage's range,
//  3. a peer has much more of its prompt cached,
//  4. the own queue exceeds its bound, and a peer's is at most half as long.
//
// A suitable peer is not draining and serves the length in its stage. For reasons 1
// and 4 a peer of a longer stage is taken if there is none. Among several, the one
// that would start first wins: fewest waiting tokens plus uncached prompt tokens, then
// least load, then list order. If many front ends see the same stale queues, all pick
// the same peer; the caller should give each of them a different sample.
//
// The zero value has the defaults.
type Policy struct {
	// Queue is the bound on waiting prompt tokens, about a quarter of a second of prefill.
	// 0 means DefaultQueue.
	Queue policies.Tokens
	// Prefix is how many more cached tokens justify a forward. 0 means DefaultPrefix;
	// policies.Unbounded turns reason 3 off.
	Prefix policies.Tokens
}

var _ policies.Placer = Policy{}

// Place implements policies.Placer.
func (p Policy) Place(a policies.Arrival) policies.ReplicaID {
	if a.Hops > 0 {
		return ""
	}
	queue, prefix := cmp.Or(p.Queue, DefaultQueue), cmp.Or(p.Prefix, DefaultPrefix)
	length := a.Request.Length()
	switch serves := a.Own.Low <= length && length < a.Own.High; {
	case a.Own.Draining:
		return bestOfExactOrLonger(a, policies.Unbounded)
	case !a.Request.Estimated && !serves:
		return bestPeer(a, exactly, 0, policies.Unbounded)
	}
	if id := bestPeer(a, exactly, a.Own.Prefix+min(prefix, policies.Unbounded-a.Own.Prefix), queue); id != "" {
		return id
	}
	if a.Own.Waiting > queue {
		return bestOfExactOrLonger(a, a.Own.Waiting/2)
	}
	return ""
}

// A fit says which stages may serve a length.
type fit int

const (
	exactly fit = iota // only the stage whose range holds it
	longer             // only stages of longer ranges
)

// bestOfExactOrLonger returns a peer of the exact stage, otherwise one of a longer stage.
func bestOfExactOrLonger(a policies.Arrival, waiting policies.Tokens) policies.ReplicaID {
	if id := bestPeer(a, exactly, 0, waiting); id != "" {
		return id
	}
	return bestPeer(a, longer, 0, waiting)
}

// bestPeer returns the peer that would start the request first, among the suitable ones
// that have at least so much of the prompt cached and at most so many tokens waiting;
// "" if there is none.
func bestPeer(a policies.Arrival, f fit, cached, waiting policies.Tokens) policies.ReplicaID {
	length := a.Request.Length()
	var best *policies.Candidate
	var least policies.Tokens
	for i := range a.Peers {
		s := &a.Peers[i]
		fits := s.Low <= length && length < s.High
		if f == longer {
			fits = length < s.Low
		}
		if !fits || s.Draining || s.ID == a.Own.ID || s.Prefix < cached || s.Waiting > waiting {
			continue
		}
		work := s.Waiting + max(0, a.Request.Input-s.Prefix)
		if best == nil || work < least || work == least && s.Load < best.Load {
			best, least = s, work
		}
	}
	if best == nil {
		return ""
	}
	return best.ID
}
