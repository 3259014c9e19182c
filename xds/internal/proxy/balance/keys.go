package balance

import (
	"math"
	"slices"
)

// keyed is a host to which keys belong.
type keyed struct {
	host   *Host
	hash   uint64 // of its address
	weight float64
}

func newKeyed(m member) keyed { return keyed{m.host, hashText(m.host.Address), m.weight} }

// pickByKeyLocked chooses the host that a key belongs to: first the priority, by the load of
// each, and then, by weighted rendezvous hashing, the host there. Without the hosts that were
// tried, or with others, a key changes its host only if its host is gone or a new one is its
// first choice. If all were tried, they are tried again.
func (b *Balancer) pickByKeyLocked(load []int, key string, tried []*Host) *Host {
	hash := hashText(key)
	// The same key stays in its priority while the loads stay; another part of the hash than
	// that which chooses the host.
	dice := int(mix(hash^priorityKey) % 100)
	for i, l := range load {
		if dice >= l {
			dice -= l
			continue
		}
		if h := first(b.priorities[i].ring, hash, tried); h != nil {
			return h
		}
		return first(b.priorities[i].ring, hash, nil)
	}
	return nil
}

// first returns the host with the highest score for a key, nil if all were tried.
func first(ring []keyed, hash uint64, tried []*Host) (best *Host) {
	top := math.Inf(-1)
	for i := range ring {
		k := &ring[i]
		if slices.Contains(tried, k.host) {
			continue
		}
		// A uniform number in (0, 1) for the pair, the same in every process.
		u := (float64(mix(hash^k.hash)>>11) + 0.5) / (1 << 53)
		if score := k.weight / -math.Log(u); best == nil || score > top {
			best, top = k.host, score
		}
	}
	return best
}

// priorityKey makes the choice of the priority independent of that of the host.
const priorityKey = 0x7072696f72697479

// hashText returns the FNV-1a hash of a text, with its bits mixed.
func hashText(text string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return mix(h)
}

// mix is the finalizer of MurmurHash3: each bit of x affects all bits of the result.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
