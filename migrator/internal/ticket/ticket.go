// Package ticket keeps the grants of a source: who may pull for which move, by
// which ticket, until when.
//
// It is the one gate that all transports share; it knows no sockets and no
// blocks. The invariant: between Enter and Leave a lease is in force, so what is
// read of the memory in between is read before Revoke returns.
package ticket

import (
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// MaxGrants bounds the grants of a book that are in force at a time.
const MaxGrants = 1024

// Book holds the grants of one source. It is safe for concurrent use. The zero
// Book is closed.
type Book struct {
	mu     sync.Mutex
	open   bool
	leases []*Lease // those that are neither over nor expired unused
	left   sync.Cond
}

// Lease is one grant: issued, then redeemed at most once, then over.
type Lease struct {
	transport.Grant
	// Memory is what the grant is for. Whoever redeems the lease holds it until
	// End.
	Memory *transport.Memory

	book *Book
	done chan struct{}

	// guarded by book.mu
	secret   [transport.TicketSize]byte
	redeemed bool
	over     bool
	inside   int
}

// Open lets the book issue tickets until Close.
func (b *Book) Open() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left.L = &b.mu
	b.open = true
}

// Close ends all grants as Revoke does; no more are issued.
func (b *Book) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open = false
	b.revokeLocked(func(*Lease) bool { return true })
}

// Issue makes a ticket for a grant of a memory. Grants that have expired at now
// are forgotten.
func (b *Book) Issue(g transport.Grant, m *transport.Memory, now time.Time) ([transport.TicketSize]byte, error) {
	l := &Lease{Grant: g, Memory: m, book: b, done: make(chan struct{})}
	rand.Read(l.secret[:]) // never fails
	switch {
	case g.Move == "" || g.Receiver == "":
		return l.secret, errors.New("grant: Move and Receiver must be named")
	case !now.Before(g.Deadline):
		return l.secret, fmt.Errorf("grant of move %s: its deadline has passed", g.Move)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open {
		return l.secret, fmt.Errorf("grant of move %s: the source does not run", g.Move)
	}
	b.dropLocked(func(l *Lease) bool { return !l.redeemed && !now.Before(l.Deadline) })
	if len(b.leases) >= MaxGrants {
		return l.secret, fmt.Errorf("grant of move %s: %d grants are in force already", g.Move, MaxGrants)
	}
	b.leases = append(b.leases, l)
	return l.secret, nil
}

// Redeem trades a ticket for its lease, once. It returns transport.ErrRefused
// for a ticket that is unknown, used, expired at now, revoked, another
// receiver's, or of a memory that has gone; a refused ticket stays as it was.
func (b *Book) Redeem(ticket [transport.TicketSize]byte, receiver policies.ReplicaID, now time.Time) (*Lease, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found *Lease
	for _, l := range b.leases { // all of them: the time taken says nothing
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

// Revoke ends all grants of a move. It returns when nobody is inside their
// leases: whoever is must leave when Done is closed.
func (b *Book) Revoke(move string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.revokeLocked(func(l *Lease) bool { return l.Move == move })
}

func (b *Book) revokeLocked(which func(*Lease) bool) {
	var ended []*Lease
	b.dropLocked(func(l *Lease) bool {
		if !which(l) {
			return false
		}
		ended = append(ended, l)
		return true
	})
	for _, l := range ended {
		for l.inside > 0 {
			b.left.Wait()
		}
	}
}

// dropLocked ends the leases that are chosen.
func (b *Book) dropLocked(which func(*Lease) bool) {
	kept := b.leases[:0]
	for _, l := range b.leases {
		if !which(l) {
			kept = append(kept, l)
			continue
		}
		l.over = true
		close(l.done)
	}
	clear(b.leases[len(kept):])
	b.leases = kept
}

// Done is closed when the lease is over. Its deadline alone does not close it:
// the holder keeps its own time.
func (l *Lease) Done() <-chan struct{} { return l.done }

// Cut closes c when the lease is over, so that who waits on it waits no longer,
// until stop is called. When stop returns, c is left alone.
func (l *Lease) Cut(c io.Closer) (stop func()) {
	over, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		select {
		case <-l.done:
			_ = c.Close()
		case <-over:
		}
	}()
	return func() { close(over); <-gone }
}

// Enter begins to use the memory, or an answer that depends on the lease. It
// reports false, and must not be followed by Leave, when the lease is over or
// expired at now.
func (l *Lease) Enter(now time.Time) bool {
	l.book.mu.Lock()
	defer l.book.mu.Unlock()
	if l.over || !now.Before(l.Deadline) {
		return false
	}
	l.inside++
	return true
}

// Leave ends what Enter began.
func (l *Lease) Leave() {
	l.book.mu.Lock()
	defer l.book.mu.Unlock()
	l.inside--
	if l.inside == 0 {
		l.book.left.Broadcast()
	}
}

// End gives a redeemed lease back, once, by whoever redeemed it and is not
// inside any more.
func (l *Lease) End() {
	l.book.mu.Lock()
	l.book.dropLocked(func(other *Lease) bool { return other == l })
	l.book.mu.Unlock()
	l.Memory.Release()
}
