package transport

import (
	"slices"
)

// Export makes an offer for a grant with every transport over which its receiver may pull. A
// transport that fails to is left out.
func (s *Paths) Export(g Grant) (offers []Offer) {
	for _, t := range s.exports(g.Receiver) {
		offer, err := t.Export(g)
		if err != nil {
			s.log.Warn("transport ticket not created", "transport", t.Name(), "migration", g.Migration, "error", err)
			continue
		}
		offers = append(offers, offer)
	}
	return offers
}

// Announce lets the receiver of the offers for a migration read blocks.
func (s *Paths) Announce(migration string, offers []Offer, blocks []uint32) {
	for _, t := range s.offering(offers) {
		t.Announce(migration, blocks)
	}
}

// Revoke ends the grants of the offers for a migration. When it returns, no pull that succeeds reads
// the blocks any more.
func (s *Paths) Revoke(migration string, offers []Offer) {
	for _, t := range s.offering(offers) {
		t.Revoke(migration)
	}
}

// offering returns the transports that have made offers.
func (s *Paths) offering(offers []Offer) []Transport {
	return slices.DeleteFunc(slices.Clone(s.cfg.Transports), func(t Transport) bool {
		return !slices.ContainsFunc(offers, func(o Offer) bool { return o.Transport == t.Name() })
	})
}
