package sim

// RoundRobin is smooth weighted round robin, as Envoy picks in a stage's cluster. Requests with a prefix key go to a
// cluster of the same replicas with a consistent hash and equal weights (ByKey): a weight follows the load, and would
// move keys away from their cached prefixes. Equal calls give equal picks, whatever Envoy's random numbers and its Maglev
// table are; cmd/internal/e2e/envoy compares both by counts.
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

// ByKey returns the member that a prefix key is hashed to, among those of a weight above 0; −1 for none.
// When a replica comes or goes, only the keys are moved that it has.
func ByKey(members []int, key uint64, weight func(replica int) uint32) int {
	best, most := -1, uint64(0)
	for _, i := range members {
		if weight(i) == 0 {
			continue
		}
		if x := spreadBits(spreadBits(key*0x9e3779b97f4a7c15) + uint64(i+1)*0xa0761d6478bd642f); best < 0 || x > most {
			best, most = i, x
		}
	}
	return best
}

// spreadBits spreads a number's bits.
func spreadBits(x uint64) uint64 {
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	return x ^ x>>32
}
