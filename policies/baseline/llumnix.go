package baseline

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// Llumnix is the global scheduler of Llumnix (Sun et al., OSDI 2024, section 4.4) with the settings of
// its releases: one scheduler measures all replicas, sends a request to the freest one, and moves
// running requests from the least to the most free replicas. The freeness of a replica is the number of
// tokens that each of its requests can still generate before its KV cache is full: what is neither in
// use nor promised, divided by its requests. An idle replica is the freest.
//
// Every PollInterval the replicas whose freeness is below migrateOut are paired with those above it,
// the least free with the freest and so on, and of each pair the shortest running request moves (the
// release's pair policy "defrag" and request policy "SR"). A replica moves one request at a time. A
// replica that is Down and has requests drains: they all leave.
//
// The threshold acts when memory is short. With Balanced there is none: all replicas are paired, and a
// pair moves a request if the one with less freeness would still hold more tokens after a request of
// its mean length has moved (the release's pair policy "balanced").
//
// The zero value has the releases' settings.
type Llumnix struct{ Balanced bool }

// PollInterval is the time between two calls of Rebalance in the releases of Llumnix.
const PollInterval = 50 * policies.Millisecond

// migrateOut is the freeness below which requests leave: three blocks of 16 tokens.
const migrateOut policies.Tokens = 48

var _ Rebalancer = Llumnix{}

// freeness is −∞ for a replica that drains.
func freeness(r *Replica) policies.Tokens {
	switch {
	case r.Down:
		return -policies.Unbounded
	case r.Requests == 0:
		return policies.Unbounded
	}
	return (r.Capacity - r.Load) / policies.Tokens(r.Requests)
}

// Route implements Router.
func (Llumnix) Route(_ Request, replicas []Replica, _ *rand.Rand) int {
	return best(replicas, func(a, b int) bool { return freeness(&replicas[a]) > freeness(&replicas[b]) })
}

// Rebalance implements Rebalancer.
func (p Llumnix) Rebalance(replicas []Replica) []Pair {
	var sources, targets []int
	for i := range replicas {
		free := freeness(&replicas[i])
		if replicas[i].Requests > 0 && (p.Balanced || free < migrateOut) {
			sources = append(sources, i)
		}
		if !replicas[i].Down && (p.Balanced || free > migrateOut) {
			targets = append(targets, i)
		}
	}
	byFreeness := func(a, b int) int { return cmp.Compare(freeness(&replicas[a]), freeness(&replicas[b])) }
	slices.SortStableFunc(sources, byFreeness)
	slices.SortStableFunc(targets, func(a, b int) int { return byFreeness(b, a) })
	var pairs []Pair
	for i := range min(len(sources), len(targets)) {
		from, to := &replicas[sources[i]], &replicas[targets[i]]
		if p.Balanced && !from.Down && from.Load-to.Load <= 2*from.Load/policies.Tokens(from.Requests) {
			break // so it is with those that follow: their difference is smaller
		}
		pairs = append(pairs, Pair{From: sources[i], To: targets[i]})
	}
	return pairs
}

// Choose implements Rebalancer: it takes the shortest request, the first among equals.
func (Llumnix) Choose(lengths []policies.Tokens) int {
	at := -1
	for i, length := range lengths {
		if at < 0 || length < lengths[at] {
			at = i
		}
	}
	return at
}
