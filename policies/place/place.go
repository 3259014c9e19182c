// Package place decides where a request starts that has not produced a token:
// on the replica whose front accepted it, or on one peer.
//
// It is a forward, not a move: no KV travels, and the front keeps the client.
// It corrects what the proxy could not know (the exact length, the queue at
// this instant, cached prefixes) and never second-guesses another front: a
// request that was forwarded once stays.
package place

import "github.com/cascadeinfer/cascade/policies"

// The defaults of a Policy.
const (
	DefaultQueue  policies.Tokens = 8192
	DefaultPrefix policies.Tokens = 1024
)

// Policy forwards a request for the first of these reasons that holds:
//
//  1. the own replica drains,
//  2. the request's exact length is outside the own stage's range,
//  3. a peer has much more of its prompt cached,
//  4. the own queue is over its bound and a peer's is at most half of it.
//
// A peer is one that does not drain and whose stage serves the length. For
// reasons 1 and 4 a peer of a longer stage will do when there is none. Among
// several the one wins that would begin first: fewest tokens waiting plus own
// tokens not cached, then least load, then the first in the list. Many fronts
// that see the same stale queues would all pick the same peer; the caller
// should show each of them a sample.
//
// The zero value has the defaults.
type Policy struct {
	// Queue is the bound on prompt tokens that wait, about a quarter of a
	// second of prefill. 0 means DefaultQueue.
	Queue policies.Tokens
	// Prefix is how many more cached tokens make a forward worthwhile. 0 means
	// DefaultPrefix; policies.Unbounded switches reason 3 off.
	Prefix policies.Tokens
}

var _ policies.Placer = Policy{}

// Place implements policies.Placer.
func (p Policy) Place(a policies.Arrival) policies.ReplicaID {
	if a.Hops > 0 {
		return ""
	}
	queue, prefix := p.Queue, p.Prefix
	if queue == 0 {
		queue = DefaultQueue
	}
	if prefix == 0 {
		prefix = DefaultPrefix
	}
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
	exactly fit = iota // the stage whose range holds it
	longer             // stages above that
)

// bestOfExactOrLonger looks for a peer of the right stage, then for one of a longer stage.
func bestOfExactOrLonger(a policies.Arrival, waiting policies.Tokens) policies.ReplicaID {
	if id := bestPeer(a, exactly, 0, waiting); id != "" {
		return id
	}
	return bestPeer(a, longer, 0, waiting)
}

// bestPeer returns the peer that would begin the request first, among those that
// fit, have at least so much of the prompt cached and at most so many tokens
// waiting; "" when there is none.
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
