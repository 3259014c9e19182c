package cuda

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
)

// Allocation is device memory without an address: it is mapped, in this process and in
// the processes that import its descriptor. It belongs to the process and outlives its
// context; so do mappings.
type Allocation struct {
	context *Context
	handle  uint64
	size    int64
	closed  atomic.Bool
}

// Granularity returns the unit of the sizes of allocations.
func (c *Context) Granularity() (int64, error) {
	v := words{1: c.device, 2: c.rdma}
	err := c.driver.do(cuMemGetAllocationGranularity, 0, &v, nil)
	return int64(v[0]), err
}

// CreateAllocation makes an allocation of at least size bytes, which NICs can reach if
// the device supports that.
func (c *Context) CreateAllocation(size int64) (*Allocation, error) {
	g, err := c.Granularity()
	if err != nil {
		return nil, err
	}
	size = (size + g - 1) / g * g
	v := words{1: uint64(size), 2: c.device, 3: c.rdma}
	if err := c.driver.do(cuMemCreate, 0, &v, nil); err != nil {
		return nil, err
	}
	return &Allocation{context: c, handle: v[0], size: size}, nil
}

// ImportAllocation imports an allocation of another process, or of this one, by its
// descriptor, which the caller keeps. size must be the Size of that allocation.
func (c *Context) ImportAllocation(f *os.File, size int64) (*Allocation, error) {
	var v words
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		v = words{1: uint64(fd)}
		failed = c.driver.do(cuMemImportFromShareableHandle, 0, &v, nil)
	}); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, failed
	}
	return &Allocation{context: c, handle: v[0], size: size}, nil
}

// Size returns the size of the allocation in bytes.
func (a *Allocation) Size() int64 { return a.size }

// Export returns a descriptor by which other processes import the allocation.
func (a *Allocation) Export() (*os.File, error) {
	v := words{1: a.handle}
	if err := a.context.driver.do(cuMemExportToShareableHandle, 0, &v, nil); err != nil {
		return nil, err
	}
	return newDescriptor(v[0], "device-memory"), nil
}

// Close releases the allocation; its memory stays while it is mapped, or imported
// elsewhere. Further calls do nothing; after an error Close may be called again.
func (a *Allocation) Close() error {
	if a.closed.Swap(true) {
		return nil
	}
	err := a.context.driver.do(cuMemRelease, 0, &words{a.handle}, nil)
	a.closed.Store(err == nil)
	return err
}

// Access is what a mapping may be used for, numbered as in cuda.h.
type Access int

// The kinds of access.
const (
	ReadOnly  Access = 1
	ReadWrite Access = 3
)

// Mapping is an allocation at an address.
type Mapping struct {
	context *Context
	at      Pointer
	size    int64

	mu     sync.Mutex
	empty  bool // nothing is mapped at the address any more
	closed bool
}

// Map maps the whole allocation at an address that the context's device can use.
func (a *Allocation) Map(access Access) (*Mapping, error) {
	c := a.context
	v := words{1: uint64(a.size)}
	if err := c.driver.do(cuMemAddressReserve, 0, &v, nil); err != nil {
		return nil, err
	}
	at := v[0]
	free := func(err error) error {
		return errors.Join(err, c.driver.do(cuMemAddressFree, 0, &words{at, uint64(a.size)}, nil))
	}
	if err := c.driver.do(cuMemMap, 0, &words{at, uint64(a.size), a.handle}, nil); err != nil {
		return nil, free(err)
	}
	if err := c.driver.do(cuMemSetAccess, 0, &words{at, uint64(a.size), c.device, uint64(access)}, nil); err != nil {
		return nil, free(errors.Join(err, c.driver.do(cuMemUnmap, 0, &words{at, uint64(a.size)}, nil)))
	}
	return &Mapping{context: c, at: Pointer(at), size: a.size}, nil
}

// Pointer returns the address of the mapping.
func (m *Mapping) Pointer() Pointer { return m.at }

// Size returns the size of the mapping in bytes.
func (m *Mapping) Size() int64 { return m.size }

// Close unmaps. No work on the mapping may be in progress. Further calls do nothing;
// after an error Close may be called again.
func (m *Mapping) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	if !m.empty {
		if err := m.context.driver.do(cuMemUnmap, 0, &words{uint64(m.at), uint64(m.size)}, nil); err != nil {
			return fmt.Errorf("unmap device memory: its address stays reserved: %w", err)
		}
		m.empty = true
	}
	err := m.context.driver.do(cuMemAddressFree, 0, &words{uint64(m.at), uint64(m.size)}, nil)
	m.closed = err == nil
	return err
}
