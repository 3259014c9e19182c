package cuda

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
)

// Allocation is device memory that has no address of its own: it is mapped, here
// and in the processes that import its descriptor. It belongs to the process and
// not to a context, whose end it outlives; so do mappings.
type Allocation struct {
	context *Context
	handle  uint64
	size    int64
	closed  atomic.Bool
}

// Granularity is what sizes of allocations are multiples of.
func (c *Context) Granularity() (int64, error) {
	v := words{1: c.device, 2: c.rdma}
	err := c.driver.do(cuMemGetAllocationGranularity, 0, &v, nil)
	return int64(v[0]), err
}

// CreateAllocation makes an allocation of at least size bytes, which NICs can reach where the
// device has that.
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

// ImportAllocation takes an allocation of another process, or of this one, by its
// descriptor, which stays the caller's. Its size must be known: it is that of the
// allocation, as Size said.
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

// Size is the allocation's, in bytes.
func (a *Allocation) Size() int64 { return a.size }

// Export returns a descriptor by which other processes import the allocation.
func (a *Allocation) Export() (*os.File, error) {
	v := words{1: a.handle}
	if err := a.context.driver.do(cuMemExportToShareableHandle, 0, &v, nil); err != nil {
		return nil, err
	}
	return newDescriptor(v[0], "device-memory"), nil
}

// Close lets the allocation go; its memory stays while it is mapped, or imported
// elsewhere. More calls do nothing; after an error one tries again.
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

// What a mapping may be used for.
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
	empty  bool // nothing is mapped at the address
	closed bool
}

// Map gives the whole allocation an address that the context's device may use.
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

// Pointer is where the mapping begins.
func (m *Mapping) Pointer() Pointer { return m.at }

// Size is the mapping's, in bytes.
func (m *Mapping) Size() int64 { return m.size }

// Close unmaps. Nothing may be at work on it. More calls do nothing; after an error
// one tries again.
func (m *Mapping) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	if !m.empty {
		if err := m.context.driver.do(cuMemUnmap, 0, &words{uint64(m.at), uint64(m.size)}, nil); err != nil {
			return fmt.Errorf("the address stays taken: %w", err)
		}
		m.empty = true
	}
	err := m.context.driver.do(cuMemAddressFree, 0, &words{uint64(m.at), uint64(m.size)}, nil)
	m.closed = err == nil
	return err
}
