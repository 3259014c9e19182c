package balance

import (
	"net/netip"
	"strings"

	"github.com/cascadeinfer/cascade/policies"
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
// the requests; 0 counts as 1. ready says that it takes new requests.
func NewEndpoint(address netip.AddrPort, weight uint32, ready bool) Endpoint {
	text := address.String()
	return Endpoint{address, text, Hash(text), max(weight, 1), ready}
}

// Ready reports whether the endpoint takes new requests.
func (e Endpoint) Ready() bool { return e.ready }

// String returns the address as IP:port.
func (e Endpoint) String() string { return e.text }

// PickerStage is a range of lengths and the replicas for it.
type PickerStage struct {
	// High is the end of the range, which begins where the previous stage ends.
	High policies.Tokens
	// Tiers are all replicas of the model, the preferred ones first: those of the stage, the
	// next longer stage's, all others. An endpoint is in one tier.
	Tiers [][]Endpoint
}

// Picker chooses the replicas for one request of a model, for gateways that ask an endpoint picker
// instead of following routes. It has the model's stages, short to long; the last one takes all
// lengths that no other takes.
//
// It chooses as a proxy does by the routes and endpoints that the control plane publishes: the stage whose
// range contains the length; within the stage a replica at random by the EDS weights; as fallbacks the next
// priorities of the stage's endpoints, which are the next longer stage and then any other replica.
//
// Invariants: chosen replicas are in the gateway's subset; none is chosen twice; one that is not ready is
// chosen only as a last resort, and one to avoid only if all others are to be avoided, too. The choice is a
// function of its arguments: randomness is one of them.
type Picker []PickerStage

// PickRequest is what a choice depends on.
type PickRequest struct {
	// Length is the estimated prompt length. A negative one is unknown: such a request belongs
	// to the last stage, whose replicas have room for it.
	Length policies.Tokens
	// Random distributes the requests; it is uniform.
	Random uint64
	// Subset restricts the choice; nil does not.
	Subset *Subset
	// Avoid reports that an address is chosen only if there is no other; nil avoids none.
	Avoid func(address string) bool
	// LastResort chooses replicas that are not ready if there is no other: their health may be
	// known late.
	LastResort bool

	unready bool // takes replicas that are not ready
}

// Pick returns the stage of a request and the addresses to try, in order: two of the first
// tier, which keep the request in its stage, then one of each further tier, and so on up to
// MaxAddresses. Without a replica that is ready and in the subset there are no addresses; a
// Picker without stages has no stage, which is −1.
func (m Picker) Pick(r PickRequest) (stage int, addresses []string) {
	if stage = m.stageOf(r.Length); stage < 0 {
		return stage, nil
	}
	random, tiers := Mix(r.Random), m[stage].Tiers
	var best [MaxAddresses]ranking // of the first tiers
	tiers = tiers[:min(len(tiers), len(best))]
	for i, tier := range tiers {
		best[i].rank(tier, random, r)
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
	switch {
	case len(addresses) > 0:
	case r.Avoid != nil:
		r.Avoid = nil
		return m.Pick(r)
	case r.LastResort && !r.unready:
		r.unready = true
		return m.Pick(r)
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
func (m Picker) stageOf(length policies.Tokens) int {
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
	ranks [MaxAddresses]Rank
}

// rank collects the endpoints of a tier that may be chosen.
func (b *ranking) rank(tier []Endpoint, random uint64, r PickRequest) {
	for i := range tier {
		e := &tier[i]
		if !e.ready && !r.unready || !r.Subset.Contains(e.address) || r.Avoid != nil && r.Avoid(e.text) {
			continue
		}
		b.insert(e, RankOf(random, e.hash, float64(e.weight)))
	}
}

func (b *ranking) insert(e *Endpoint, r Rank) {
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

// Subset is the set of endpoints that a gateway allows for a request. A nil Subset allows
// all of them, an empty one none.
type Subset struct {
	ports map[netip.AddrPort]bool
	hosts map[netip.Addr]bool // with every port
}

// NewSubset reads the entries of a subset hint. An entry is IP:port, or a list of them
// separated by commas; an IP without a port allows every port of it. Entries that are
// neither allow nothing: a gateway that names an endpoint in another way does not allow
// the others by it.
func NewSubset(entries ...string) *Subset {
	s := &Subset{make(map[netip.AddrPort]bool), make(map[netip.Addr]bool)}
	for _, entry := range entries {
		for text := range strings.SplitSeq(entry, ",") {
			text = strings.TrimSpace(text)
			if a, err := netip.ParseAddrPort(text); err == nil {
				s.ports[unmap(a)] = true
			} else if ip, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
				s.hosts[ip.Unmap()] = true
			}
		}
	}
	return s
}

// Contains reports whether the subset allows an endpoint.
func (s *Subset) Contains(a netip.AddrPort) bool {
	return s == nil || s.ports[unmap(a)] || s.hosts[a.Addr().Unmap()]
}

// unmap makes an IPv4 address that is written as an IPv6 one equal to itself.
func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
