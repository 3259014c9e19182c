package place

import (
	"cmp"

	"github.com/cascadeinfer/cascade/policies"
)

// MinUncached is the least number of prompt tokens, not cached at the own replica, for which a
// request is given to a prefill replica: less is computed in an iteration or two of the replica
// that generates the answer, for which no KV is worth moving.
const MinUncached policies.Tokens = 1024

// Prefill chooses the prefill replica that computes a request's prompt, after which the
// request moves to the own replica. The candidates are the prefill replicas that have room
// for the request, and serve all lengths. It chooses none, and the own replica computes the
// prompt, if
//
//   - the own replica is draining, or the request was forwarded before,
//   - fewer than MinUncached tokens of the prompt are not cached at the own replica, or
//   - every candidate has more waiting than the own one, by more than Queue.
//
// Among several the one with the fewest waiting tokens wins, then the least load, then list
// order.
//
// The zero value has the default.
type Prefill struct {
	// Queue is how many more prompt tokens may wait at a prefill replica than at the own one.
	// 0 means DefaultQueue.
	Queue policies.Tokens
}

var _ policies.Placer = Prefill{}

// Place implements policies.Placer.
func (p Prefill) Place(a policies.Arrival) policies.ReplicaID {
	if a.Hops > 0 || a.Own.Draining || a.Request.Input-a.Request.Cached < MinUncached {
		return ""
	}
	queue := cmp.Or(p.Queue, DefaultQueue)
	return bestPeer(a, exactly, 0, a.Own.Waiting+min(queue, policies.Unbounded-a.Own.Waiting))
}
