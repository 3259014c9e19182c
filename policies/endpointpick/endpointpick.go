// Package endpointpick chooses the replicas for one request, for gateways that ask an
// endpoint picker instead of following routes: the stage of the request's length, then a
// replica of it, then replicas to fall back to.
//
// It chooses what a proxy would choose from the routes and endpoints that the control plane
// publishes: the stage by the range that contains the length; within a stage by the EDS
// weights, or, for a request with a prefix key, the same replica for each key; and after
// it the next priorities of the same endpoints, which are the next longer stage, then any
// other replica.
//
// Invariants: only replicas that are ready are chosen, only those of the gateway's subset,
// and none twice. The choice is a function of its arguments: randomness is one of them.
package endpointpick

import (
	"net/netip"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/rendezvous"
)

// MaxAddresses is the largest number of addresses of one choice: the first and as many
// fallbacks as the proxies of a fleet retry.
const MaxAddresses = 4

// Endpoint is the front end of a replica.
type Endpoint struct {
	address netip.AddrPort
	text    string
	hash    uint64
	weight  uint32
	ready   bool
}

// NewEndpoint returns an endpoint. Its weight, relative to that of others, is its share of
// the requests without a prefix key; 0 counts as 1. ready says that it takes new requests.
func NewEndpoint(address netip.AddrPort, weight uint32, ready bool) Endpoint {
	text := address.String()
	return Endpoint{address, text, rendezvous.Hash(text), max(weight, 1), ready}
}

// Ready reports whether the endpoint takes new requests.
func (e Endpoint) Ready() bool { return e.ready }

// String returns the address as IP:port.
func (e Endpoint) String() string { return e.text }

// Stage is a range of lengths and the replicas for it.
type Stage struct {
	// High is the end of the range, which begins where the previous stage ends.
	High policies.Tokens
	// Tiers are all replicas of the model, the preferred ones first: those of the stage, the
	// next longer stage's, all others. An endpoint is in one tier.
	Tiers [][]Endpoint
}

// Model is the plan of one model: its stages, short to long. The last one takes all lengths
// that no other takes.
type Model []Stage

// Request is what a choice depends on.
type Request struct {
	// Length is the estimated prompt length. A negative one is unknown: such a request belongs
	// to the last stage, whose replicas have room for it.
	Length policies.Tokens
	// Key is the prefix key; "" without one. Requests with the same key get the same replica.
	Key string
	// Random distributes the requests without a key; it is uniform.
	Random uint64
	// Subset restricts the choice; nil does not.
	Subset *Subset
}

// Pick returns the stage of a request and the addresses to try, in order: two of the first
// tier, which keep the request in its stage, then one of each further tier, and so on up to
// MaxAddresses. Without a replica that is ready and in the subset there are no addresses; a
// Model without stages has no stage, which is −1.
func (m Model) Pick(r Request) (stage int, addresses []string) {
	if stage = m.stageOf(r.Length); stage < 0 {
		return stage, nil
	}
	key, byKey := r.Random, r.Key != ""
	if byKey {
		key = rendezvous.Hash(r.Key)
	} else {
		key = rendezvous.Mix(key)
	}
	tiers := m[stage].Tiers
	var best [MaxAddresses]ranking // of the first tiers
	tiers = tiers[:min(len(tiers), len(best))]
	for i, tier := range tiers {
		best[i].rank(tier, key, byKey, r.Subset)
	}
	for place := range MaxAddresses {
		for i := range tiers {
			if i == 0 && place == 0 {
				addresses = best[0].appendTo(addresses, 0)
			}
			at := place
			if i == 0 {
				at++
			}
			addresses = best[i].appendTo(addresses, at)
		}
	}
	return stage, addresses
}

// appendTo appends the address at a place of the ranking, if there is one and room for it.
func (b *ranking) appendTo(addresses []string, place int) []string {
	if place < b.n && len(addresses) < MaxAddresses {
		addresses = append(addresses, b.top[place].text)
	}
	return addresses
}

// stageOf returns the index of the stage of a length.
func (m Model) stageOf(length policies.Tokens) int {
	if length >= 0 {
		for i, s := range m {
			if length < s.High {
				return i
			}
		}
	}
	return len(m) - 1
}

// ranking holds the endpoints of one tier with the highest ranks, the highest first.
type ranking struct {
	n     int
	top   [MaxAddresses]*Endpoint
	ranks [MaxAddresses]rendezvous.Rank
}

// rank collects the endpoints of a tier that may be chosen. Keys ignore the weights: these
// follow the load, and each change would move keys away from the prompts that are cached for
// them.
func (b *ranking) rank(tier []Endpoint, key uint64, byKey bool, subset *Subset) {
	for i := range tier {
		e := &tier[i]
		if !e.ready || !subset.Contains(e.address) {
			continue
		}
		weight := float64(e.weight)
		if byKey {
			weight = 1
		}
		b.insert(e, rendezvous.RankOf(key, e.hash, weight))
	}
}

func (b *ranking) insert(e *Endpoint, r rendezvous.Rank) {
	at := b.n
	for at > 0 && r.Above(b.ranks[at-1]) {
		at--
	}
	if at == len(b.top) {
		return
	}
	b.n = min(b.n+1, len(b.top))
	copy(b.top[at+1:b.n], b.top[at:])
	copy(b.ranks[at+1:b.n], b.ranks[at:])
	b.top[at], b.ranks[at] = e, r
}
