package place

import (
	"github.com/cascadeinfer/cascade/policies"
)

// MinUncached is the least number of prompt tokens, not cached at the own replica, for which a
// request is given to a prefill replica: less is computed in an iteration or two of the replica
// that generates the answer, for which no KV is worth moving.
const MinUncached policies.Tokens = 1024

// neighbour is how many more prompt tokens may wait where the range holds the prompt than at a prefill replica of
// another range.
const neighbour policies.Tokens = 4096

// Prefill chooses the prefill replica that computes a request's prompt, after which the
// request moves to the own replica. The candidates are the prefill replicas that have room
// for the request; the range of each is of uncached prompt tokens (policies.PrefillRange). It
// chooses none, and the own replica computes the prompt, if
//
//   - the own replica is draining, or the request was forwarded before,
//   - fewer than MinUncached tokens of the prompt are not cached at the own replica, or
//   - every candidate that it may use has more waiting than the own one, by more than DefaultQueue
//     and by more than the prompt itself.
//
// Among several the one with the fewest waiting tokens wins, then the least load, then list
// order: first of those whose range holds the prompt's uncached tokens. Where more than
// 4,096 tokens more wait than at a candidate of another range, that one wins, provided that
// it is idle or its range is of longer prompts: so short prompts find a short queue, and the
// wait of all is bounded.
type Prefill struct{}

var _ policies.Placer = Prefill{}

// Place implements policies.Placer.
func (Prefill) Place(a policies.Arrival) policies.ReplicaID {
	uncached := a.Request.Input - a.Request.Cached
	if a.Hops > 0 || a.Own.Draining || uncached < MinUncached {
		return ""
	}
	more := max(DefaultQueue, uncached)
	most := a.Own.Waiting + min(more, policies.Unbounded-a.Own.Waiting)
	var meant, other *policies.Candidate
	for i := range a.Peers {
		s := &a.Peers[i]
		best := &meant
		switch {
		case s.Draining || s.ID == a.Own.ID || s.Waiting > most:
			continue
		case uncached < s.Low:
			best = &other
		case uncached >= s.High:
			if best = &other; s.Waiting > 0 {
				continue
			}
		}
		if b := *best; b == nil || s.Waiting < b.Waiting || s.Waiting == b.Waiting && s.Load < b.Load {
			*best = s
		}
	}
	switch {
	case other != nil && (meant == nil || meant.Waiting-other.Waiting > neighbour):
		return other.ID
	case meant != nil:
		return meant.ID
	}
	return ""
}
