package bidask

import (
	"math/bits"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// A seller asks a sample of the candidates for bids; see cost.go for the use of costs.

// chooseCandidates returns the candidates to ask and the cost of each, nil without
// costs.
func (m *Machine) chooseCandidates(ev Event) ([]policies.ReplicaID, []policies.Micros) {
	if len(ev.Costs) != len(ev.Candidates) || allEqual(ev.Costs) {
		return sample(ev.Candidates, m.config.Self, m.config.Sample, ev.Seed), nil
	}
	var ids []policies.ReplicaID
	if m.config.Sample == AskAll {
		ids = sample(ev.Candidates, m.config.Self, AskAll, ev.Seed)
	} else {
		near, far := splitByCost(ev, m.config.Self)
		ids = sample(near, m.config.Self, (m.config.Sample+1)/2, ev.Seed)
		for _, id := range near {
			if !slices.Contains(ids, id) {
				far = append(far, id)
			}
		}
		ids = append(ids, sample(far, m.config.Self, m.config.Sample-len(ids), ev.Seed+1)...)
	}
	costs := make([]policies.Micros, len(ids))
	for i, id := range ids {
		costs[i] = ev.Costs[slices.Index(ev.Candidates, id)]
	}
	return ids, costs
}

// allEqual reports whether all costs are equal.
func allEqual(costs []policies.Micros) bool {
	for _, c := range costs {
		if c != costs[0] {
			return false
		}
	}
	return true
}

// splitByCost divides the candidates into near ones, which cost at most twice the
// least cost, and far ones.
func splitByCost(ev Event, self policies.ReplicaID) (near, far []policies.ReplicaID) {
	least := policies.Micros(-1)
	for i, c := range ev.Costs {
		if ev.Candidates[i] != self && (least < 0 || c < least) {
			least = max(0, c)
		}
	}
	for i, id := range ev.Candidates {
		switch {
		case id == self:
		case ev.Costs[i]-least <= least:
			near = append(near, id)
		default:
			far = append(far, id)
		}
	}
	return near, far
}

// sample returns d different candidates other than self, or all of them if d is AskAll
// or there are no more. Equal seeds give equal samples. The order is random too: the
// first reply breaks ties, and among equally distant candidates the one asked first
// replies first. The cost depends on d, not on the number of candidates.
func sample(candidates []policies.ReplicaID, self policies.ReplicaID, d int, seed uint64) []policies.ReplicaID {
	n := len(candidates)
	if d == AskAll {
		d = n
	}
	// One more than needed, in case self is among them.
	picked := make([]int, 0, min(d+1, n))
	if d+1 < n { // Floyd's algorithm
		for i := n - d - 1; i < n; i++ {
			at := int(randomBelow(&seed, uint64(i+1)))
			if slices.Contains(picked, at) {
				at = i
			}
			picked = append(picked, at)
		}
	} else {
		for i := range n {
			picked = append(picked, i)
		}
	}
	out := make([]policies.ReplicaID, 0, len(picked))
	for i := range picked {
		at := i + int(randomBelow(&seed, uint64(len(picked)-i)))
		picked[i], picked[at] = picked[at], picked[i]
		if c := candidates[picked[i]]; c != self {
			out = append(out, c)
		}
	}
	return out[:min(d, len(out))]
}

// randomBelow advances the seed and returns a number below n (SplitMix64, then the
// upper half of a product; its bias is far below what a sample could show).
func randomBelow(seed *uint64, n uint64) uint64 {
	*seed += 0x9e3779b97f4a7c15
	z := *seed
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	high, _ := bits.Mul64(z^z>>31, n)
	return high
}
