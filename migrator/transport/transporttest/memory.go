package transporttest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
	"github.com/cascadeinfer/cascade/policies"
)

// Network connects the transports of one process. The zero Network is empty and ready to
// use. It is safe for concurrent use.
type Network struct {
	mu      sync.Mutex
	sources map[string]*Memory
}

// MemoryConfig configures a Memory.
type MemoryConfig struct {
	// Network connects the transports that reach each other. Required.
	Network *Network
	// Name is the address of the source in the network, unique among the transports
	// that run. Required.
	Name string
	// Pool has the local engine's memory. Required.
	Pool transport.Pool
	// Faults are the faults of the pulls of this side; nil for none.
	Faults *Faults
}

// Memory is a transport for tests of migrations: it carries blocks between the pools of engines in one
// process, and injects faults on request. It keeps the contract of every transport (tickets, checksums,
// deadlines, fences). It uses no sockets and waits on channels and timers only, so that it runs under
// testing/synctest and two runs with the same faults are the same. It is safe for concurrent use.
type Memory struct {
	config MemoryConfig
	source lease.Source
}

var _ transport.Transport = (*Memory)(nil)

// NewMemory returns a transport that serves while Run runs.
func NewMemory(c MemoryConfig) (*Memory, error) {
	if c.Network == nil || c.Name == "" || c.Pool == nil {
		return nil, errors.New("memory transport: Network, Name and Pool are required")
	}
	return &Memory{config: c, source: lease.Source{Transport: "memory", Pool: c.Pool}}, nil
}

// Name returns "memory".
func (t *Memory) Name() string { return "memory" }

// Probe returns nil.
func (t *Memory) Probe(context.Context) error { return nil }

// CanReach returns true: a Network has no hosts.
func (t *Memory) CanReach(from, to string) bool { return true }

// Run serves until ctx ends.
func (t *Memory) Run(ctx context.Context) error {
	n := t.config.Network
	n.mu.Lock()
	if n.sources[t.config.Name] != nil {
		n.mu.Unlock()
		return fmt.Errorf("memory transport: %q runs already", t.config.Name)
	}
	if n.sources == nil {
		n.sources = make(map[string]*Memory)
	}
	n.sources[t.config.Name] = t
	n.mu.Unlock()

	t.source.Start(t.config.Name)
	<-ctx.Done()
	t.source.Stop()

	n.mu.Lock()
	delete(n.sources, t.config.Name)
	n.mu.Unlock()
	return nil
}

// Export makes an offer. See transport.Transport.
func (t *Memory) Export(g transport.Grant) (transport.Offer, error) { return t.source.Export(g) }

// Announce lets receivers read blocks. See transport.Transport.
func (t *Memory) Announce(migration string, blocks []uint32) {
	t.source.Announce(migration, blocks)
}

// Revoke ends the grants of a migration. See transport.Transport.
func (t *Memory) Revoke(migration string) { t.source.Revoke(migration) }

// Open presents a ticket. See transport.Transport.
func (t *Memory) Open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (transport.Puller, error) {
	return lease.Open(t.Name(), offer, func() (*puller, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := t.config.Faults.open(ctx); err != nil {
			return nil, err
		}
		n := t.config.Network
		n.mu.Lock()
		source := n.sources[offer.Address]
		n.mu.Unlock()
		if source == nil {
			return nil, errors.New("no source serves at this address")
		}
		local, err := transport.HoldHostMemory(t.config.Pool)
		if err != nil {
			return nil, err
		}
		lease, err := source.source.Redeem(offer.Ticket, receiver, time.Now())
		if err != nil {
			local.Release()
			return nil, err
		}
		return newPuller(t.config.Faults, lease, local), nil
	})
}
