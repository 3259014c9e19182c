package lease

import (
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// MaxGrants bounds the grants of an Issuer that are in force at a time.
const MaxGrants = 1024

// Issuer holds the grants of one source. It is safe for concurrent use. The zero Issuer
// is closed.
type Issuer struct {
	mu     sync.Mutex
	open   bool
	leases []*Lease  // those that are neither over nor expired unused
	unused sync.Cond // signals that a lease has no user inside
}

// Open lets the issuer issue tickets until Close.
func (s *Issuer) Open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unused.L = &s.mu
	s.open = true
}

// Close ends all grants as Revoke does. No more tickets are issued.
func (s *Issuer) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = false
	s.revokeLocked(func(*Lease) bool { return true })
}

// Issue makes a ticket for a grant of a memory. It drops the grants that have expired at
// now.
func (s *Issuer) Issue(g transport.Grant, m *transport.Memory, now time.Time) ([transport.TicketSize]byte, error) {
	l := &Lease{Grant: g, Memory: m, issuer: s, done: make(chan struct{})}
	rand.Read(l.secret[:]) // never fails
	switch {
	case g.Migration == "" || g.Receiver == "":
		return l.secret, errors.New("grant: Migration and Receiver are required")
	case !now.Before(g.Deadline):
		return l.secret, fmt.Errorf("grant of migration %s: its deadline has passed", g.Migration)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.open {
		return l.secret, fmt.Errorf("grant of migration %s: the source does not run", g.Migration)
	}
	s.dropLocked(func(l *Lease) bool { return !l.redeemed && !now.Before(l.Deadline) })
	if len(s.leases) >= MaxGrants {
		return l.secret, fmt.Errorf("grant of migration %s: %d grants are in force already", g.Migration, MaxGrants)
	}
	s.leases = append(s.leases, l)
	return l.secret, nil
}

// Redeem checks a ticket and trades it for its lease, once. It returns
// transport.ErrRefused for a ticket that is unknown, used, expired at now, revoked,
// issued for another receiver, or for a memory that has been closed. A refused ticket
// stays as it was.
func (s *Issuer) Redeem(ticket [transport.TicketSize]byte, receiver policies.ReplicaID, now time.Time) (*Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found *Lease
	for _, l := range s.leases { // compares all of them, so that the time reveals nothing
		if subtle.ConstantTimeCompare(l.secret[:], ticket[:]) == 1 {
			found = l
		}
	}
	if found == nil || found.redeemed || found.Receiver != receiver || !now.Before(found.Deadline) || !found.Memory.Hold() {
		return nil, transport.ErrRefused
	}
	found.redeemed = true
	return found, nil
}

// Announce adds blocks to the leases of a migration that are in force.
func (s *Issuer) Announce(migration string, blocks []uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.leases {
		if l.Migration == migration {
			l.announceLocked(blocks)
		}
	}
}

// Revoke ends all grants of a migration. It returns when no user is inside their leases:
// users must leave when Done is closed.
func (s *Issuer) Revoke(migration string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revokeLocked(func(l *Lease) bool { return l.Migration == migration })
}

func (s *Issuer) revokeLocked(match func(*Lease) bool) {
	for _, l := range s.dropLocked(match) {
		for l.users > 0 {
			s.unused.Wait()
		}
	}
}

// dropLocked ends the leases that match, and returns them.
func (s *Issuer) dropLocked(match func(*Lease) bool) (dropped []*Lease) {
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
