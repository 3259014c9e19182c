package lease

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/internal/identity"
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
	// TrustDomain is that of the receivers' certificates: the certificate of the connection on
	// which a ticket arrives must be that of the migrator of the ticket's receiver. It is checked
	// before the ticket, so that a stolen ticket stays good for its receiver. "" checks nothing.
	TrustDomain string
	// Logger receives the log. Required if Accept is called.
	Logger *slog.Logger

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

// Export makes an offer. See transport.Transport.
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

// Accept reads a hello and trades its ticket for a lease, which the caller must End. cert is the
// receiver's certificate, nil if it presented none. admit decides whether there may be another
// pull. refuse sends the refusal of a hello that is not accepted; its error is ignored.
func (s *Source) Accept(r io.Reader, cert *x509.Certificate, admit func() error, refuse func([]byte) error) (*Lease, error) {
	hello, err := ReadHello(r)
	if err != nil {
		return nil, err
	}
	l, err := s.redeem(hello, cert)
	if err == nil {
		if err = admit(); err == nil {
			return l, nil
		}
		l.End()
		s.Logger.Warn("rejected a receiver with a valid ticket", "transport", s.Transport, "receiver", string(hello.Receiver), "err", err)
	}
	_ = refuse(AppendRefusal(nil))
	return nil, fmt.Errorf("receiver %s: %w", hello.Receiver, err)
}

// redeem checks the certificate of the connection, then the ticket.
func (s *Source) redeem(h Hello, cert *x509.Certificate) (*Lease, error) {
	if s.TrustDomain != "" {
		err := errors.New("the hello does not name a receiver")
		if h.Receiver != "" {
			want := identity.Matcher{TrustDomain: s.TrustDomain, Role: identity.Migrator, Name: string(h.Receiver)}
			_, err = want.CheckCertificate(cert)
		}
		if err != nil {
			s.Logger.Warn("rejected a receiver: its certificate does not match its ticket", "transport", s.Transport, "receiver", string(h.Receiver), "err", err)
			return nil, err
		}
	}
	return s.Redeem(h.Ticket, h.Receiver, time.Now())
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
