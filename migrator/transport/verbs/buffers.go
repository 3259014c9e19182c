package verbs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/migrator/transport"
)

// The bounce buffers that a NIC reaches instead of a pool: two are in use, the others are
// packed ahead.
const (
	bounceBuffers = 4
	bounceBytes   = 4 << 20
	maxBlock      = 64 << 20 // a buffer has room for one block at least
	maxStaged     = 1 << 30  // bytes of all buffers
	maxIdle       = 64 << 20 // bytes of unused buffers that are kept
)

// blocksPerBuffer returns how many blocks of a layout a buffer has room for.
func blocksPerBuffer(l transport.Layout) int64 {
	return max(1, min(bounceBytes/l.BlockBytes(), maxAsked))
}

// Pinner is a transport.Device that can read and write registered host memory directly.
type Pinner interface {
	// Pin registers a mapping, which must stay mapped until unpin has succeeded.
	Pin(b []byte) (unpin func() error, err error)
}

// errTooFar is why a pool that a NIC can reach goes through bounce buffers.
var errTooFar = errors.New("the NIC is too far from the GPU")

// acquireRegion registers a pool, or, if it is on a device that the NIC cannot reach,
// bounce buffers for its blocks. The region is given back by releaseRegion.
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

// acquireBuffers returns unused bounce buffers for a pool, or makes some.
func (n *nic) acquireBuffers(pool *transport.Memory) (*region, error) {
	n.mu.Lock()
	for _, r := range n.regions {
		if r.pool == pool && r.users == 0 && !r.retired {
			r.users++
			n.mu.Unlock()
			return r, nil
		}
	}
	n.mu.Unlock()
	block := pool.BlockBytes()
	if block > maxBlock {
		return nil, fmt.Errorf("blocks of %d bytes are too large for bounce buffers: at most %d", block, maxBlock)
	}
	buffer := blocksPerBuffer(pool.Layout) * block
	size := bounceBuffers * buffer
	if total := n.staged.Add(size); total > maxStaged {
		n.staged.Add(-size)
		return nil, fmt.Errorf("%d bytes of bounce buffers are in use already", total-size)
	}
	b, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		n.staged.Add(-size)
		return nil, fmt.Errorf("map bounce buffers: %w", err)
	}
	unpin := func() error { return nil }
	if d, ok := pool.Device.(Pinner); ok {
		if f, err := d.Pin(b); err != nil {
			n.config.Logger.Warn("a processor copies blocks between GPU and bounce buffers: pinning failed", "err", err)
		} else {
			unpin = f
		}
	}
	m := &transport.Memory{Bytes: b, Unmap: func() {
		if err := unpin(); err != nil { // then it stays mapped
			n.config.Logger.Warn("unpinning bounce buffers failed; they stay mapped", "err", err)
			return
		}
		_ = unix.Munmap(b) // cannot fail for a mapping
		n.staged.Add(-size)
	}}
	r, err := newRegion(n.device, m)
	m.Close() // the registration holds it
	if err != nil {
		return nil, err
	}
	r.pool, r.bufferBytes = pool, buffer
	n.mu.Lock()
	defer n.mu.Unlock()
	n.regions = append(n.regions, r)
	return r, nil
}

// retireRegion makes sure that bounce buffers which something may still write are not
// reused.
func (n *nic) retireRegion(r *region) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r.retired = true
}

// probeRegion returns why blocks of a pool cannot be carried. It remembers whether the
// NIC reaches the pool; fresh is why it does not, if that is news.
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
