package paths

import (
	"fmt"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// maxOffers bounds the offers of one message.
const maxOffers = 16

// EncodeOffers converts offers to protobuf.
func EncodeOffers(offers []transport.Offer) (out []*api.Offer) {
	for _, o := range offers {
		out = append(out, &api.Offer{Transport: o.Transport, Address: o.Address, Ticket: append([]byte(nil), o.Ticket[:]...)})
	}
	return out
}

// DecodeOffers converts offers of a peer from protobuf and validates them.
func DecodeOffers(from policies.ReplicaID, offers []*api.Offer) (out []transport.Offer, err error) {
	if len(offers) > maxOffers {
		return nil, fmt.Errorf("%d offers: must be at most %d", len(offers), maxOffers)
	}
	for _, o := range offers {
		if len(o.GetTicket()) != transport.TicketSize {
			return nil, fmt.Errorf("ticket of %d bytes: must have %d", len(o.GetTicket()), transport.TicketSize)
		}
		out = append(out, transport.Offer{Transport: o.GetTransport(), Address: o.GetAddress(), Ticket: [transport.TicketSize]byte(o.GetTicket()), Source: from})
	}
	return out, nil
}
