// Package tokenhash is the hash of a stream's token ids: the one thing that front,
// seller and buyer of a moving request compare to know that they mean the same
// text.
//
// It can be carried on id by id, so that its cost when a request moves does not
// grow with the request's length. It is no cryptographic hash: it finds
// mistakes, not forgers.
package tokenhash

// Hash names a sequence of token ids. The zero value is that of no ids.
type Hash uint64

// Add returns the hash of the sequence that ids continue.
func (h Hash) Add(ids ...uint32) Hash {
	x := uint64(h)
	for _, id := range ids {
		x = (x ^ (uint64(id) + 1)) * 0x9e3779b97f4a7c15
		x ^= x >> 29
	}
	return Hash(x)
}
