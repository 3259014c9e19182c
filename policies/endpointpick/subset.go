package endpointpick

import (
	"net/netip"
	"strings"
)

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
