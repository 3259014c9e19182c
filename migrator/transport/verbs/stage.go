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
	bounceBuffers = 4
	bounceBytes   = 4 << 20
	maxBlock      = 64 << 20 // a slot has one block at least
	maxStaged     = 1 << 30  // bytes of all slots
	maxIdle       = 64 << 20 // of those that wait for moves
)

// blocksPerBuffer is how many blocks of a layout a slot has.
func blocksPerBuffer(l transport.Layout) int64 {
	return max(1, min(bounceBytes/l.BlockBytes(), maxAsked))
}

// Pinner is a transport.Device that reads and writes memory of the host by itself when
// it is told of it.
type Pinner interface {
	// Pin tells it of a mapping, which stays one until unpin has succeeded.
	Pin(b []byte) (unpin func() error, err error)
}

// errTooFar is why a pool that a NIC may reach goes by slots all the same.
var errTooFar = errors.New("the NIC lies too far from the GPU")

// acquireRegion registers a pool; or, where it is a device's that the NIC does not reach, slots
// that its blocks go by. It is left by leave.
func (n *nic) acquireRegion(m *transport.Memory) (r *region, err error) {
	n.mu.Lock()
	far := n.unreachable == m
	n.mu.Unlock()
	if !far && (m.Device == nil || !n.config.Bounce()) {
		if r, err = n.acquirePool(m); err == nil || m.Device == nil {
			return r, err
		}
	}
	r, failed := n.acquireBuffers(m)
	if failed != nil {
		return nil, errors.Join(err, failed)
	}
	return r, nil
}

// acquireBuffers finds slots for a pool that nobody uses, or makes some.
func (n *nic) acquireBuffers(pool *transport.Memory) (*region, error) {
	n.mu.Lock()
	total := int64(0)
	for _, r := range n.regions {
		if r.pool == pool && r.users == 0 && !r.retired {
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
	slot := blocksPerBuffer(pool.Layout) * block
	if total+bounceBuffers*slot > maxStaged {
		return nil, fmt.Errorf("%d bytes of host memory are blocks' on their way already", total)
	}
	b, err := unix.Mmap(-1, 0, int(bounceBuffers*slot), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
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
	r.pool, r.bufferBytes = pool, slot
	n.mu.Lock()
	defer n.mu.Unlock()
	n.regions = append(n.regions, r)
	return r, nil
}

// retireRegion has slots that something may still write to serve nobody else.
func (n *nic) retireRegion(r *region) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r.retired = true
}

// probeRegion says why blocks of a pool cannot be carried. It remembers whether the NIC
// reaches the pool: fresh says why not when that was not known.
func (n *nic) probeRegion(m *transport.Memory, p transport.Pool) (fresh, err error) {
	r, why := (*region)(nil), errTooFar
	if m.Device == nil || !n.config.Bounce() {
		r, why = n.acquirePool(m)
	}
	if why != nil {
		if m.Device == nil {
			return nil, why
		}
		if r, err = n.acquireBuffers(m); err != nil {
			return nil, errors.Join(why, err)
		}
	}
	n.mu.Lock()
	switch {
	case why != nil && n.unreachable != m:
		n.unreachable, fresh = m, why
	case why == nil && n.unreachable == m:
		n.unreachable = nil
	}
	n.mu.Unlock()
	return fresh, n.releaseRegion(r, p)
}
