package sim

// RoundRobin is smooth weighted round robin, as Envoy picks in a stage's cluster. Equal calls give equal picks, whatever
// Envoy's random numbers are; cmd/internal/e2e/envoy compares both by counts.
type RoundRobin struct {
	turn []int64 // by replica
}

// NewRoundRobin returns one for replicas 0 … n−1.
func NewRoundRobin(n int) *RoundRobin { return &RoundRobin{make([]int64, n)} }

// Pick returns one of the members, −1 for none. The weight of a replica that gets no request is 0.
func (r *RoundRobin) Pick(members []int, weight func(replica int) uint32) int {
	best, sum := -1, int64(0)
	for _, i := range members {
		w := int64(weight(i))
		if w == 0 {
			continue
		}
		r.turn[i] += w
		sum += w
		if best < 0 || r.turn[i] > r.turn[best] {
			best = i
		}
	}
	if best >= 0 {
		r.turn[best] -= sum
	}
	return best
}
