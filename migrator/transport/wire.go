package transport

import (
	"fmt"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
)

// MaxOffers bounds the offers of one message.
const MaxOffers = 16

// EncodeOffers converts offers to protobuf.
func EncodeOffers(offers []Offer) (out []*api.Offer) {
	for _, o := range offers {
		out = append(out, &api.Offer{Transport: o.Transport, Address: o.Address, Ticket: append([]byte(nil), o.Ticket[:]...)})
	}
	return out
}

// DecodeOffers converts offers of a peer from protobuf and validates them.
func DecodeOffers(from policies.ReplicaID, offers []*api.Offer) (out []Offer, err error) {
	if len(offers) > MaxOffers {
		return nil, fmt.Errorf("%d offers: must be at most %d", len(offers), MaxOffers)
	}
	for _, o := range offers {
		if len(o.GetTicket()) != TicketSize {
			return nil, fmt.Errorf("ticket of %d bytes: must have %d", len(o.GetTicket()), TicketSize)
		}
		out = append(out, Offer{Transport: o.GetTransport(), Address: o.GetAddress(), Ticket: [TicketSize]byte(o.GetTicket()), Source: from})
	}
	return out, nil
}
