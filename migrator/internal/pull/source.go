package pull

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
)

// Source exports the pool of the local engine to receivers. Its tickets are redeemed by
// the embedded Issuer.
type Source struct {
	Issuer
	// Transport is the transport's name.
	Transport string
	// Pool has the memory of the local engine.
	Pool transport.Pool
	// Check returns why the transport cannot carry a memory; nil accepts every memory.
	Check func(*transport.Memory) error

	address atomic.Pointer[string] // nil while the source does not serve
}

// Start lets the source export grants for receivers that connect to address, until Stop.
func (s *Source) Start(address string) {
	s.Issuer.Open()
	s.address.Store(&address)
}

// Stop revokes all grants. No more are exported.
func (s *Source) Stop() {
	s.address.Store(nil)
	s.Issuer.Close()
}

// Export makes an offer. See transport.Source.
func (s *Source) Export(g transport.Grant) (transport.Offer, error) {
	address := ""
	if p := s.address.Load(); p != nil {
		address = *p
	}
	return s.ExportAt(g, address)
}

// ExportAt makes an offer with an address that the caller knows, "" for none.
func (s *Source) ExportAt(g transport.Grant, address string) (transport.Offer, error) {
	secret, err := s.issue(g, address)
	if err != nil {
		return transport.Offer{}, fmt.Errorf("%s transport: export: %w", s.Transport, err)
	}
	return transport.Offer{Transport: s.Transport, Address: address, Ticket: secret}, nil
}

func (s *Source) issue(g transport.Grant, address string) (secret [transport.TicketSize]byte, err error) {
	m, ok := s.Pool.Memory()
	if !ok {
		return secret, errors.New("the engine is away")
	}
	if s.Check != nil {
		if err := s.Check(m); err != nil {
			return secret, err
		}
	}
	if address == "" {
		return secret, errors.New("the source does not serve at any address yet")
	}
	return s.Issue(g, m, time.Now())
}
