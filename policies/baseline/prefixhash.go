package baseline

import "math/rand/v2"

// PrefixHash takes the replica that a hash of the prompt's first block ranks highest (rendezvous
// hashing): requests with the same beginning meet on one replica, whatever its load. Requests without
// a known beginning go to a random replica.
type PrefixHash struct{}

// Route implements Router.
func (PrefixHash) Route(r Request, replicas []Replica, rng *rand.Rand) int {
	key := rng.Uint64()
	if len(r.Prefix) > 0 {
		key = r.Prefix[0]
	}
	at, highest := -1, uint64(0)
	for i := range replicas {
		if replicas[i].Down {
			continue
		}
		if h := mix(key ^ uint64(i+1)*0x9e3779b97f4a7c15); at < 0 || h > highest {
			at, highest = i, h
		}
	}
	return at
}

// mix is a bijective finaliser: every input bit reaches every output bit.
func mix(x uint64) uint64 {
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	return x ^ x>>32
}
