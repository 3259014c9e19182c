package verbs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/migrator/transport"
)

// What a NIC reaches in the stead of a pool that it does not: slots of host memory, two
// at work and the others ahead.
const (
	slots     = 4
	slotBytes = 4 << 20
	maxBlock  = 64 << 20 // a slot has one block at least
	maxStaged = 1 << 30  // bytes of all slots
	maxIdle   = 64 << 20 // of those that wait for moves
)

// perSlot is how many blocks of a layout a slot has.
func perSlot(l transport.Layout) int64 {
	return max(1, min(slotBytes/l.BlockBytes(), maxAsked))
}

// Pinner is a transport.Device that reads and writes memory of the host by itself when
// it is told of it.
type Pinner interface {
	// Pin tells it of a mapping, which stays one until unpin has succeeded.
	Pin(b []byte) (unpin func() error, err error)
}

// errFar is why a pool that a NIC may reach goes by slots all the same.
var errFar = errors.New("the NIC lies too far from the GPU")

// reach registers a pool; or, where it is a device's that the NIC does not reach, slots
// that its blocks go by. It is left by leave.
func (n *nic) reach(m *transport.Memory) (r *region, err error) {
	n.mu.Lock()
	far := n.far == m
	n.mu.Unlock()
	if !far && (m.Device == nil || !n.config.Bounce()) {
		if r, err = n.registered(m); err == nil || m.Device == nil {
			return r, err
		}
	}
	r, failed := n.staged(m)
	if failed != nil {
		return nil, errors.Join(err, failed)
	}
	return r, nil
}

// staged finds slots for a pool that nobody uses, or makes some.
func (n *nic) staged(pool *transport.Memory) (*region, error) {
	n.mu.Lock()
	total := int64(0)
	for _, r := range n.regions {
		if r.pool == pool && r.users == 0 && !r.over {
			r.users++
			n.mu.Unlock()
			return r, nil
		}
		if r.pool != nil {
			total += int64(len(r.memory.Bytes))
		}
	}
	n.mu.Unlock()
	block := pool.BlockBytes()
	if block > maxBlock {
		return nil, fmt.Errorf("blocks of %d bytes do not go by way of the host: %d at most", block, maxBlock)
	}
	slot := perSlot(pool.Layout) * block
	if total+slots*slot > maxStaged {
		return nil, fmt.Errorf("%d bytes of host memory are blocks' on their way already", total)
	}
	b, err := unix.Mmap(-1, 0, int(slots*slot), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("host memory for blocks: %w", err)
	}
	unpin := func() error { return nil }
	if d, ok := pool.Device.(Pinner); ok {
		if f, err := d.Pin(b); err != nil {
			n.config.Logger.Warn("verbs transport: a processor copies what goes by way of the host", "err", err)
		} else {
			unpin = f
		}
	}
	m := &transport.Memory{Bytes: b, Unmap: func() {
		if err := unpin(); err != nil { // then it stays mapped
			n.config.Logger.Warn("verbs transport: slots", "err", err)
			return
		}
		_ = unix.Munmap(b) // which cannot fail for what was mapped
	}}
	r, err := newRegion(n.device, m)
	m.Close() // and the registration holds it
	if err != nil {
		return nil, err
	}
	r.pool, r.slot = pool, slot
	n.mu.Lock()
	defer n.mu.Unlock()
	n.regions = append(n.regions, r)
	return r, nil
}

// spoil has slots that something may still write to serve nobody else.
func (n *nic) spoil(r *region) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r.over = true
}

// probe says why blocks of a pool cannot be carried. It remembers whether the NIC
// reaches the pool: fresh says why not when that was not known.
func (n *nic) probe(m *transport.Memory, p transport.Pool) (fresh, err error) {
	r, why := (*region)(nil), errFar
	if m.Device == nil || !n.config.Bounce() {
		r, why = n.registered(m)
	}
	if why != nil {
		if m.Device == nil {
			return nil, why
		}
		if r, err = n.staged(m); err != nil {
			return nil, errors.Join(why, err)
		}
	}
	n.mu.Lock()
	switch {
	case why != nil && n.far != m:
		n.far, fresh = m, why
	case why == nil && n.far == m:
		n.far = nil
	}
	n.mu.Unlock()
	return fresh, n.leave(r, p)
}
