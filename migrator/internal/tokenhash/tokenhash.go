// Package tokenhash hashes a stream's token ids. The front end, the source and the target of a
// migration compare the hash to make sure that they mean the same text.
//
// The hash is extended id by id, so that its cost during a migration does not grow with the
// request's length. It is not cryptographic: it detects mistakes, not forgeries.
package tokenhash

// Hash is the hash of a sequence of token ids. The zero value is the hash of no ids.
type Hash uint64

// Add returns the hash of the sequence extended by ids.
func (h Hash) Add(ids ...uint32) Hash {
	x := uint64(h)
	for _, id := range ids {
		x = (x ^ (uint64(id) + 1)) * 0x9e3779b97f4a7c15
		x ^= x >> 29
	}
	return Hash(x)
}
