package testkit

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

// TestNamespaceAddresses: each link has a network of its own, in the range for tests; namespaces begin anywhere in it.
func TestNamespaceAddresses(t *testing.T) {
	ids := []uint32{0, 1<<15 - 2, 1<<32 - 1, rand.Uint32()}
	tests := netip.MustParsePrefix("198.18.0.0/15")
	for _, id := range ids {
		networks := make(map[netip.Prefix]bool)
		for i := range 300 {
			here, there := addressesOf(id, i)
			network := netip.PrefixFrom(here, 30).Masked()
			if !tests.Contains(here) || here != network.Addr().Next() || there != here.Next() || networks[network] {
				t.Fatalf("id %d, link %d: %v and %v", id, i, here, there)
			}
			networks[network] = true
		}
	}
	begins := make(map[netip.Addr]bool)
	for id := range uint32(1 << 15) {
		here, _ := addressesOf(id, 0)
		begins[here] = true
	}
	if len(begins) != 1<<15 {
		t.Errorf("namespaces begin at %d networks, want %d", len(begins), 1<<15)
	}
}
