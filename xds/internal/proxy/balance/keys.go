package balance

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies/rendezvous"
)

// keyed is a host to which keys belong.
type keyed struct {
	host   *Host
	hash   uint64 // of its address
	weight float64
}

func newKeyed(m member) keyed { return keyed{m.host, rendezvous.Hash(m.host.Address), m.weight} }

// pickByKeyLocked chooses the host that a key belongs to: first the priority, by the load of
// each, and then, by weighted rendezvous hashing, the host there. Without the hosts that were
// tried, or with others, a key changes its host only if its host is gone or a new one is its
// first choice. If all were tried, they are tried again.
func (b *Balancer) pickByKeyLocked(load []int, key string, tried []*Host) *Host {
	hash := rendezvous.Hash(key)
	// The same key stays in its priority while the loads stay; another part of the hash than
	// that which chooses the host.
	dice := int(rendezvous.Mix(hash^priorityKey) % 100)
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

// first returns the host with the highest rank for a key, nil if all were tried.
func first(ring []keyed, hash uint64, tried []*Host) (best *Host) {
	var top rendezvous.Rank
	for i := range ring {
		k := &ring[i]
		if slices.Contains(tried, k.host) {
			continue
		}
		if rank := rendezvous.RankOf(hash, k.hash, k.weight); best == nil || rank.Above(top) {
			best, top = k.host, rank
		}
	}
	return best
}

// priorityKey makes the choice of the priority independent of that of the host.
const priorityKey = 0x7072696f72697479
