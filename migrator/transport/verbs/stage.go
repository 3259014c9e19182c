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
)

// perSlot is how many blocks of a layout a slot has.
func perSlot(l transport.Layout) int64 {
	return max(1, min(slotBytes/l.BlockBytes(), maxAsked))
}

// reach registers a pool; or, where it is a device's that the NIC does not reach, slots
// of so many bytes that its blocks go by. It is left by leave.
func (n *nic) reach(m *transport.Memory) (r *region, slot int64, err error) {
	n.mu.Lock()
	far := n.far == m
	n.mu.Unlock()
	if !far {
		if r, err = n.registered(m); err == nil || m.Device == nil {
			return r, 0, err
		}
	}
	r, slot, failed := n.stage(m.Layout)
	if failed != nil {
		return nil, 0, errors.Join(err, failed)
	}
	return r, slot, nil
}

// stage makes slots for a layout's blocks. They are the region's memory.
func (n *nic) stage(l transport.Layout) (*region, int64, error) {
	block := l.BlockBytes()
	if block > maxBlock {
		return nil, 0, fmt.Errorf("blocks of %d bytes do not go by way of the host: %d at most", block, maxBlock)
	}
	slot := perSlot(l) * block
	b, err := unix.Mmap(-1, 0, int(slots*slot), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, 0, fmt.Errorf("host memory for blocks: %w", err)
	}
	m := &transport.Memory{Bytes: b, Unmap: func() { _ = unix.Munmap(b) }} // which cannot fail for what was mapped
	r, err := n.registered(m)
	m.Close() // and the registration holds it
	return r, slot, err
}

// probe says why blocks of a pool cannot be carried. It remembers whether the NIC
// reaches the pool: fresh says why not when that was not known.
func (n *nic) probe(m *transport.Memory, p transport.Pool) (fresh, err error) {
	r, why := n.registered(m)
	if why != nil {
		if m.Device == nil {
			return nil, why
		}
		if r, _, err = n.stage(m.Layout); err != nil {
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
