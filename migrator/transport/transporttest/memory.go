package transporttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	lease.Source
	config MemoryConfig
}

var _ transport.Transport = (*Memory)(nil)

// NewMemory returns a transport that serves while Run runs.
func NewMemory(c MemoryConfig) (*Memory, error) {
	if c.Network == nil || c.Name == "" || c.Pool == nil {
		return nil, errors.New("memory transport: Network, Name and Pool are required")
	}
	return &Memory{Source: lease.Source{Transport: "memory", Pool: c.Pool}, config: c}, nil
}

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

	t.Start(func() string { return t.config.Name })
	<-ctx.Done()
	t.Stop()

	n.mu.Lock()
	delete(n.sources, t.config.Name)
	n.mu.Unlock()
	return nil
}

// Open presents a ticket. See transport.Transport.
func (t *Memory) Open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (transport.Puller, error) {
	return lease.Open(t.Name(), offer, func() (*lease.Puller, error) { return t.open(ctx, receiver, offer) })
}

func (t *Memory) open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (*lease.Puller, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	fault := t.config.Faults.next(AtOpen)
	if fault.Kind == Refuse {
		return nil, transport.ErrRefused
	}
	if err := fault.wait(ctx, nil, time.Now().Add(openTimeout)); err != nil {
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
	held, err := source.Redeem(offer.Ticket, receiver)
	if err != nil {
		local.Release()
		return nil, err
	}
	p := &puller{faults: t.config.Faults, lease: held, local: local, closing: make(chan struct{})}
	p.Puller = lease.NewPuller(lease.Steps{
		Transport: "memory", Local: local, Remote: held.Memory.Layout, Copy: p.copyBlocks,
		Interrupt: func() { close(p.closing) },
		Release: func() error {
			held.End()
			local.Release()
			return nil
		},
	})
	return p.Puller, nil
}

// puller is one open pull.
type puller struct {
	*lease.Puller
	faults  *Faults
	lease   *lease.Lease
	local   *transport.Memory
	closing chan struct{} // closed by Close
}

// copyBlocks copies a plan block by block, each inside the lease.
func (p *puller) copyBlocks(ctx context.Context, plan transport.Plan, bad []int) ([]int, error) {
	if err := p.lease.CheckAnnounced(plan.Src); err != nil {
		return bad, err
	}
	fault, last := p.faults.next(AtPull), len(plan.Src)
	for i := range last + 1 { // the last round is after the last block
		if err := p.Err(ctx); err != nil {
			return bad, err
		}
		if i == min(fault.Block, last) {
			if err := fault.wait(ctx, p.closing, p.lease.Deadline); err != nil {
				return bad, err
			}
		}
		if !p.lease.Enter() {
			return bad, errors.New("the source has ended the grant")
		}
		if i < last && !p.copyBlock(plan, i, fault.Kind == Corrupt && fault.Block == i) {
			bad = append(bad, i)
		}
		p.lease.Leave()
	}
	return bad, nil
}

// copyBlock copies entry i of the plan and reports whether it has its checksums.
func (p *puller) copyBlock(plan transport.Plan, i int, corrupt bool) bool {
	good, regions := true, len(p.local.Regions)
	for r := range regions {
		dst := p.local.RegionBytes(plan.Dst[i], r)
		sum := transport.CopyAndChecksum(dst, p.lease.Memory.RegionBytes(plan.Src[i], r), 0)
		if corrupt && r == 0 {
			dst[0] ^= 0xff
			sum = ^sum
		}
		good = good && sum == plan.Sums[i*regions+r]
	}
	return good
}

// Step is a call of the receiving side that a fault can happen in.
type Step int

const (
	AtOpen Step = iota
	AtPull
)

// Kind is the kind of a fault.
type Kind int

const (
	// None is no fault.
	None Kind = iota
	// Hang waits until the caller gives up: its context ends, the puller is closed, or
	// the grant expires.
	Hang
	// Cut fails the call like a broken connection.
	Cut
	// Refuse fails an Open with transport.ErrRefused, and a Pull like Cut.
	Refuse
	// Corrupt flips bits in the first byte of a block as it arrives: the pull reports the
	// block, and the byte is wrong until the block is pulled again. It does nothing to an
	// Open.
	Corrupt
)

// Fault is one fault to inject.
type Fault struct {
	At  Step
	Nth int // the number of the call of that step, from 0 since Set
	// Block is the plan's entry at which the fault happens: the entries before it have
	// arrived. A number beyond the plan means after its last block; an Open has no
	// blocks.
	Block int
	Kind  Kind
}

// Faults is the script of the receiving side of one transport. The zero value and nil
// have no faults. It is safe for concurrent use.
type Faults struct {
	mu     sync.Mutex
	script []Fault
	calls  [AtPull + 1]int
}

// Set replaces the script and counts calls from 0 again. Of several faults for one call
// the first one happens.
func (f *Faults) Set(script ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.script, f.calls = slices.Clone(script), [AtPull + 1]int{}
}

// next counts one call and returns its fault.
func (f *Faults) next(at Step) Fault {
	if f == nil {
		return Fault{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.calls[at]
	f.calls[at]++
	for _, fault := range f.script {
		if fault.At == at && fault.Nth == n {
			return fault
		}
	}
	return Fault{}
}

// openTimeout bounds an Open that hangs, since it knows no grant yet.
const openTimeout = 5 * time.Second

// wait injects a fault that does not change bytes.
func (f Fault) wait(ctx context.Context, closing <-chan struct{}, deadline time.Time) error {
	switch f.Kind {
	case None, Corrupt:
		return nil
	case Cut, Refuse:
		return errors.New("the connection broke")
	}
	end := time.NewTimer(time.Until(deadline))
	defer end.Stop()
	select {
	case <-end.C:
		return errors.New("the source did not answer before the deadline")
	case <-ctx.Done():
		return ctx.Err()
	case <-closing:
		return lease.ErrClosed
	}
}
