package processes

import (
	"bufio"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/handshake"
	"github.com/cascadeinfer/cascade/policies"
)

// presentTicket sends a ticket to a source over an open connection, and returns nil if the source accepts
// it.
func presentTicket(c net.Conn, ticket []byte, receiver string) error {
	h := handshake.Hello{Receiver: policies.ReplicaID(receiver)}
	copy(h.Ticket[:], ticket)
	hello, err := h.Append(nil)
	if err != nil {
		return err
	}
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write(hello); err != nil {
		return err
	}
	_, _, err = handshake.ReadWelcome(bufio.NewReaderSize(c, handshake.MaxWelcome))
	return err
}

// stealBlocks presents a ticket at the address of an offer.
func stealBlocks(o *api.Offer, ticket []byte, receiver string) error {
	c, err := net.Dial(map[string]string{"tcp": "tcp", "shm": "unixpacket"}[o.Transport], o.Address)
	if err != nil {
		return err
	}
	defer c.Close()
	return presentTicket(c, ticket, receiver)
}

// TestStolenTickets connects to the sources of running migrations with other receivers' tickets,
// without a ticket, and with used ones, over each transport.
func TestStolenTickets(t *testing.T) {
	t.Parallel()
	h := newHop(t, config.MigrationLive, nil)
	var mu sync.Mutex
	var seen []*api.Offer
	target := h.target.ID
	try := func(what string, o *api.Offer, ticket []byte, receiver string) {
		if err := stealBlocks(o, ticket, receiver); !errors.Is(err, transport.ErrRefused) {
			t.Errorf("%s over %s: %v, want %v", what, o.Transport, err, transport.ErrRefused)
		}
	}
	offer := liveSteps[1]
	h.injectFault(offer, fault{name: "theft", always: true, strike: func(_ *hop, c crossing) bool {
		mu.Lock()
		defer mu.Unlock()
		for _, o := range c.Offers {
			try("no ticket", o, nil, target)
			try("another's ticket", o, o.Ticket, "r7")
			try("ticket of no source", o, o.Ticket, "")
		}
		seen = append(seen, c.Offers...)
		return true
	}})
	by := map[string]int{}
	for _, o := range seen {
		try("the ticket of a move that is over", o, o.Ticket, target)
		by[o.Transport]++
	}
	if by["shm"] == 0 || by["tcp"] == 0 {
		t.Errorf("offers were %v; want some over shm and some over tcp", by)
	}
	if h.tally() == 0 {
		t.Error("nothing moved")
	}
}
