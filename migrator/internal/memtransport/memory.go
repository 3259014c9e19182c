// Package memtransport carries blocks within one process, and can be told to do it
// badly: it is what the moves of a fleet are tested with.
//
// It uses no sockets, and waits on channels and timers only, so that it runs
// under testing/synctest and two runs with the same faults are the same. It is
// held to the contract of every transport: tickets, sums, deadlines, fences.
package memtransport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/ticket"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// Network is what the transports of one process find each other by. The zero
// Network is empty and ready; it is safe for concurrent use.
type Network struct {
	mu      sync.Mutex
	sources map[string]*Transport
}

// Config is what a Transport needs.
type Config struct {
	// Network joins the transports that reach each other. Required.
	Network *Network
	// Name is the source's address in the network. Required, unique among those
	// that run.
	Name string
	// Pool has the own engine's memory. Required.
	Pool transport.Pool
	// Faults is what goes wrong at this side's pulls; nil for nothing.
	Faults *Faults
}

// Transport is one engine's end. It is safe for concurrent use.
type Transport struct {
	config Config
	book   ticket.Book
}

var _ transport.Transport = (*Transport)(nil)

// New returns a transport that serves once it runs.
func New(c Config) (*Transport, error) {
	if c.Network == nil || c.Name == "" || c.Pool == nil {
		return nil, errors.New("memory transport: Network, Name and Pool are required")
	}
	return &Transport{config: c}, nil
}

// Name returns "memory".
func (t *Transport) Name() string { return "memory" }

// Probe returns nil: there is no machine without memory.
func (t *Transport) Probe(context.Context) error { return nil }

// Reaches returns true: a Network has no nodes.
func (t *Transport) Reaches(from, to string) bool { return true }

// Run serves until ctx ends.
func (t *Transport) Run(ctx context.Context) error {
	n := t.config.Network
	n.mu.Lock()
	if n.sources[t.config.Name] != nil {
		n.mu.Unlock()
		return fmt.Errorf("memory transport: %q runs already", t.config.Name)
	}
	if n.sources == nil {
		n.sources = make(map[string]*Transport)
	}
	n.sources[t.config.Name] = t
	n.mu.Unlock()

	t.book.Open()
	<-ctx.Done()
	t.book.Close()

	n.mu.Lock()
	delete(n.sources, t.config.Name)
	n.mu.Unlock()
	return nil
}

// Export makes an offer. See transport.Source.
func (t *Transport) Export(g transport.Grant) (transport.Offer, error) {
	m, ok := t.config.Pool.Memory()
	if !ok {
		return transport.Offer{}, errors.New("memory transport: the engine is away")
	}
	secret, err := t.book.Issue(g, m, time.Now())
	if err != nil {
		return transport.Offer{}, fmt.Errorf("memory transport: %w", err)
	}
	return transport.Offer{Transport: t.Name(), Address: t.config.Name, Ticket: secret}, nil
}

// Revoke ends the grants of a move. See transport.Source.
func (t *Transport) Revoke(move string) { t.book.Revoke(move) }

// Open presents a ticket. See transport.Target.
func (t *Transport) Open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (transport.Puller, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("memory transport: open %s: %w", offer.Address, err)
	}
	if offer.Transport != t.Name() {
		return nil, fmt.Errorf("memory transport: an offer for transport %q", offer.Transport)
	}
	if err := t.config.Faults.open(ctx); err != nil {
		return nil, fmt.Errorf("memory transport: open %s: %w", offer.Address, err)
	}
	n := t.config.Network
	n.mu.Lock()
	source := n.sources[offer.Address]
	n.mu.Unlock()
	if source == nil {
		return nil, fmt.Errorf("memory transport: open %s: nobody serves there", offer.Address)
	}
	local, err := transport.Hold(t.config.Pool)
	if err != nil {
		return nil, fmt.Errorf("memory transport: %w", err)
	}
	lease, err := source.book.Redeem(offer.Ticket, receiver, time.Now())
	if err != nil {
		local.Release()
		return nil, fmt.Errorf("memory transport: open %s: %w", offer.Address, err)
	}
	return &puller{faults: t.config.Faults, local: local, lease: lease, closing: make(chan struct{})}, nil
}
