package balance

import "math"

// Hash returns the FNV-1a hash of a text, with its bits mixed. It protects against nothing:
// who knows the members can find a key for each of them.
func Hash(text string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return Mix(h)
}

// Mix is the finalizer of MurmurHash3: each bit of x affects all bits of the result.
func Mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// Rank is the rank of one member for one key, by weighted rendezvous hashing: a key belongs to
// the member with the highest Rank for it. The result depends on nothing but the texts and the
// weights, so processes that know the same members agree without a message. A member that leaves
// or comes moves only its own keys. Each gets keys in proportion to its weight.
type Rank struct {
	bits   uint64 // 52 uniform bits for the pair
	weight float64
}

// RankOf returns the rank of a member for a key, by the hashes of both. The weight must be
// positive.
func RankOf(key, member uint64, weight float64) Rank { return Rank{Mix(key^member) >> 12, weight} }

// Above reports whether a is the higher rank. Equal ranks are above neither.
func (a Rank) Above(b Rank) bool {
	if a.weight == b.weight {
		return a.bits > b.bits // the scores are in the same order: no logarithm is needed
	}
	return a.score() > b.score()
}

// score is weight / −ln u, for a u in (0, 1): its maximum over the members is at each of
// them with a probability in proportion to its weight.
func (a Rank) score() float64 {
	u := (float64(a.bits) + 0.5) / (1 << 52) // exact, so never 1
	return a.weight / -math.Log(u)
}
