package lease

import (
	"crypto/rand"
	"crypto/subtle"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// MaxGrants bounds the grants of a Source that are in force at a time.
const MaxGrants = 1024

// Source exports the pool of the local engine to receivers: it issues tickets and trades them for leases. Transports
// embed it. It is safe for concurrent use.
type Source struct {
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

	mu      sync.Mutex
	address func() string // nil while the source does not serve
	leases  []*Lease      // those that are neither over nor expired unused
	unused  sync.Cond     // signals that a lease has no user inside
}

// Name returns the transport's name.
func (s *Source) Name() string { return s.Transport }

// Start lets the source export grants, until Stop. address returns where receivers connect, "" while that is unknown.
// It must not block.
func (s *Source) Start(address func() string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unused.L = &s.mu
	s.address = address
}

// Serves reports whether the source is between Start and Stop.
func (s *Source) Serves() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.address != nil
}

// Stop ends all grants as Revoke does. No more are exported.
func (s *Source) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.address = nil
	s.revokeLocked(func(*Lease) bool { return true })
}

// Export makes an offer. It drops the grants that have expired. See transport.Transport.
func (s *Source) Export(g transport.Grant) (transport.Offer, error) {
	offer, err := s.export(g)
	if err != nil {
		return transport.Offer{}, fmt.Errorf("%s transport: export: %w", s.Transport, err)
	}
	return offer, nil
}

func (s *Source) export(g transport.Grant) (transport.Offer, error) {
	offer, now := transport.Offer{Transport: s.Transport}, time.Now()
	m, ok := s.Pool.Memory()
	if !ok {
		return offer, errors.New("the engine is away")
	}
	if s.Check != nil {
		if err := s.Check(m); err != nil {
			return offer, err
		}
	}
	switch {
	case g.Migration == "" || g.Receiver == "":
		return offer, errors.New("grant: Migration and Receiver are required")
	case !now.Before(g.Deadline):
		return offer, fmt.Errorf("grant of migration %s: its deadline has passed", g.Migration)
	}
	rand.Read(offer.Ticket[:]) // never fails
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.address == nil {
		return offer, errors.New("the source does not run")
	}
	if offer.Address = s.address(); offer.Address == "" {
		return offer, errors.New("the source does not serve at any address yet")
	}
	s.dropLocked(func(l *Lease) bool { return !l.redeemed && !now.Before(l.Deadline) })
	if len(s.leases) >= MaxGrants {
		return offer, fmt.Errorf("grant of migration %s: %d grants are in force already", g.Migration, MaxGrants)
	}
	s.leases = append(s.leases, &Lease{Grant: g, Memory: m, source: s, done: make(chan struct{}), ticket: offer.Ticket})
	return offer, nil
}

// Accept reads a hello and trades its ticket for a lease, which the caller must End. cert is the
// receiver's certificate, nil if it presented none. admit decides whether there may be another
// pull. refuse sends the refusal of a hello that is not accepted; its error is ignored.
func (s *Source) Accept(r io.Reader, cert *x509.Certificate, admit func() error, refuse func([]byte) error) (*Lease, error) {
	hello, err := ReadHello(r)
	if err != nil {
		return nil, err
	}
	if err = s.checkCertificate(hello.Receiver, cert); err == nil {
		var l *Lease
		if l, err = s.Redeem(hello.Ticket, hello.Receiver); err == nil {
			if err = admit(); err == nil {
				return l, nil
			}
			l.End()
			s.Logger.Warn("rejected a receiver with a valid ticket", "transport", s.Transport, "receiver", string(hello.Receiver), "err", err)
		}
	}
	_ = refuse(AppendRefusal(nil))
	return nil, fmt.Errorf("receiver %s: %w", hello.Receiver, err)
}

// checkCertificate returns why the certificate of a connection is not that of the receiver's migrator.
func (s *Source) checkCertificate(receiver policies.ReplicaID, cert *x509.Certificate) error {
	if s.TrustDomain == "" {
		return nil
	}
	err := errors.New("the hello does not name a receiver")
	if receiver != "" {
		want := identity.Matcher{TrustDomain: s.TrustDomain, Role: identity.Migrator, Name: string(receiver)}
		_, err = want.CheckCertificate(cert)
	}
	if err != nil {
		s.Logger.Warn("rejected a receiver: its certificate does not match its ticket", "transport", s.Transport, "receiver", string(receiver), "err", err)
	}
	return err
}

// Redeem checks a ticket and trades it for its lease, once. It returns
// transport.ErrRefused for a ticket that is unknown, used, expired, revoked, issued for
// another receiver, or for a memory that has been closed. A refused ticket stays as it was.
func (s *Source) Redeem(ticket [transport.TicketSize]byte, receiver policies.ReplicaID) (*Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found *Lease
	for _, l := range s.leases { // compares all of them, so that the time reveals nothing
		if subtle.ConstantTimeCompare(l.ticket[:], ticket[:]) == 1 {
			found = l
		}
	}
	if found == nil || found.redeemed || found.Receiver != receiver || !time.Now().Before(found.Deadline) || !found.Memory.Hold() {
		return nil, transport.ErrRefused
	}
	found.redeemed = true
	return found, nil
}

// Announce adds blocks to the leases of a migration that are in force. See transport.Transport.
func (s *Source) Announce(migration string, blocks []uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.leases {
		if l.Migration == migration {
			l.announceLocked(blocks)
		}
	}
}

// Revoke ends all grants of a migration. It returns when no user is inside their leases:
// users must leave when Done is closed. See transport.Transport.
func (s *Source) Revoke(migration string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revokeLocked(func(l *Lease) bool { return l.Migration == migration })
}

func (s *Source) revokeLocked(match func(*Lease) bool) {
	for _, l := range s.dropLocked(match) {
		for l.users > 0 {
			s.unused.Wait()
		}
	}
}

// dropLocked ends the leases that match, and returns them.
func (s *Source) dropLocked(match func(*Lease) bool) (dropped []*Lease) {
	kept := s.leases[:0]
	for _, l := range s.leases {
		if !match(l) {
			kept = append(kept, l)
			continue
		}
		l.over = true
		close(l.done)
		dropped = append(dropped, l)
	}
	clear(s.leases[len(kept):])
	s.leases = kept
	return dropped
}
