package cuda

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// Kind is how another process reaches a pool.
type Kind uint32

const (
	// IPC pools are named by a CUDA IPC handle: memory of cudaMalloc, and of PyTorch's
	// allocator by default.
	IPC Kind = 1
	// VMM pools are sent as a descriptor, and can be mapped read-only.
	VMM Kind = 2
)

// Handle describes a pool in device memory to other processes.
type Handle struct {
	Kind Kind
	// ID identifies the pool; its owner chooses it at random.
	ID [16]byte
	// GPU is the UUID of the device that has the memory.
	GPU [16]byte
	// Name is the name of an IPC allocation.
	Name cuda.IPCHandle
	// Offset is where the pool begins in its allocation of Size bytes.
	Offset, Size int64
}

// handleSize is the length of an encoded Handle in bytes: kind u32, 0 u32, id,
// GPU, offset u64, size u64, name.
const handleSize = 8 + 16 + 16 + 16 + 64

// Append appends the encoded handle.
func (h Handle) Append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.Kind))
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	dst = append(append(dst, h.ID[:]...), h.GPU[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.Offset))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.Size))
	return append(dst, h.Name[:]...)
}

// ParseHandle decodes a handle, and checks that its pool can have so many bytes.
func ParseHandle(b []byte, pool int64) (Handle, error) {
	if len(b) != handleSize {
		return Handle{}, fmt.Errorf("handle: %d bytes, want %d", len(b), handleSize)
	}
	h := Handle{Kind: Kind(binary.LittleEndian.Uint32(b)), Offset: int64(binary.LittleEndian.Uint64(b[40:])), Size: int64(binary.LittleEndian.Uint64(b[48:]))}
	copy(h.ID[:], b[8:])
	copy(h.GPU[:], b[24:])
	copy(h.Name[:], b[56:])
	return h, h.validate(pool)
}

func (h Handle) validate(pool int64) error {
	if h.Kind != IPC && h.Kind != VMM {
		return fmt.Errorf("handle: unknown kind %d", h.Kind)
	}
	if h.Offset < 0 || h.Size <= 0 || pool > h.Size || h.Offset > h.Size-pool {
		return fmt.Errorf("handle: a pool of %d bytes at offset %d does not fit into an allocation of %d bytes", pool, h.Offset, h.Size)
	}
	return nil
}

// Memory is the local engine's pool on a GPU. It implements transport.Device.
type Memory struct {
	gpu    *GPU
	handle Handle
	size   int64    // of the pool
	file   *os.File // of a VMM pool

	mu        sync.Mutex
	closedErr error // why the memory cannot be used any more
	// The allocation behind a VMM pool that Allocate made; nil for others.
	allocation *cuda.Allocation
}

// Attach maps a pool of another process by its handle, and, for VMM, its descriptor,
// which is closed with the memory. It maps the pool once to check that this is possible.
func Attach(g *GPU, h Handle, file *os.File, l transport.Layout) (*transport.Memory, error) {
	if err := h.validate(l.MinSize()); err != nil {
		return nil, err
	}
	if (h.Kind == VMM) != (file != nil) {
		return nil, errors.New("handle: VMM pools, and only those, have a descriptor")
	}
	m := &Memory{gpu: g, handle: h, size: l.MinSize(), file: file}
	if err := g.withContext(nil, func(h *gpuContext) error {
		p, err := m.acquireMapping(h)
		if err == nil {
			h.releaseMapping(p, time.Now())
		}
		return err
	}); err != nil {
		return nil, err
	}
	return m.asMemory(l), nil
}

// Allocate makes a pool in this process, as an engine does.
func Allocate(g *GPU, kind Kind, l transport.Layout) (*transport.Memory, error) {
	m := &Memory{gpu: g, handle: Handle{Kind: kind, GPU: g.info.UUID, Size: l.MinSize()}, size: l.MinSize()}
	rand.Read(m.handle.ID[:]) // never fails
	err := g.withContext(nil, func(h *gpuContext) error {
		if kind == IPC {
			p, err := h.context.Alloc(m.handle.Size)
			if err != nil {
				return err
			}
			base, size, err := h.context.AllocationRange(p)
			if err == nil {
				m.handle.Offset, m.handle.Size = int64(p-base), size
				m.handle.Name, err = h.context.IPCHandle(p)
			}
			if err != nil {
				return errors.Join(err, h.context.Free(p))
			}
			h.mu.Lock()
			h.allocations[m] = p
			h.mu.Unlock()
			return nil
		}
		a, err := h.context.CreateAllocation(m.handle.Size)
		if err != nil {
			return err
		}
		m.handle.Size = a.Size()
		if m.file, err = a.Export(); err != nil {
			return errors.Join(err, a.Close())
		}
		m.allocation = a
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("a pool on gpu %d: %w", g.config.Ordinal, err)
	}
	return m.asMemory(l), nil
}

// asMemory returns the transport.Memory of m.
func (m *Memory) asMemory(l transport.Layout) *transport.Memory {
	l.Checksum = transport.Multiply
	return &transport.Memory{Layout: l, Device: m, Unmap: m.close}
}

// Handle returns the description of the pool for other processes.
func (m *Memory) Handle() Handle { return m.handle }

// Descriptor duplicates the descriptor of a VMM pool. It returns nil for other pools.
func (m *Memory) Descriptor() (*os.File, error) {
	if m.file == nil {
		return nil, nil
	}
	raw, err := m.file.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var failed error
	if err := raw.Control(func(old uintptr) { fd, failed = unix.FcntlInt(old, syscall.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, failed
	}
	return os.NewFile(uintptr(fd), "pool"), nil
}

// ErrNoDMABuf is the error of DMABuf if no other device can reach the pool: blocks go to
// a NIC through host memory then.
var ErrNoDMABuf = errors.New("the driver of this GPU exports no dma-buf of the pool")

// DMABuf exports the pool to another device of this host, such as a NIC: it returns a
// descriptor, which the caller closes, and the offset of the pool in it. The error wraps
// ErrNoDMABuf if the driver does not support it, or refuses it for this memory. CUDA
// promises it for memory of cuMemAlloc and for what is mapped from a descriptor, and says
// nothing about memory that came by IPC.
func (m *Memory) DMABuf() (f *os.File, offset int64, err error) {
	if m.gpu.info.DMABuf {
		err = m.gpu.withContext(nil, func(h *gpuContext) error {
			own, err := m.acquireMapping(h)
			if err != nil {
				return err
			}
			defer func() { h.releaseMapping(own, time.Now()) }()
			if f, offset, err = h.context.DMABuf(own.pool, m.size); err == nil {
				h.keepMapping(own) // a registration outlives this call
			}
			return err
		})
		if err == nil {
			return f, offset, nil
		}
	}
	if err == nil {
		err = ErrNoDMABuf
	} else if cuda.HasCode(err, cuda.NotSupported) || cuda.HasCode(err, cuda.InvalidValue) {
		err = fmt.Errorf("%w: %w", ErrNoDMABuf, err)
	}
	return nil, 0, fmt.Errorf("a pool on gpu %d: %w", m.gpu.config.Ordinal, err)
}

// acquireMapping returns the mapping of the pool in a context. It is given back by
// releaseMapping.
func (m *Memory) acquireMapping(h *gpuContext) (*mapping, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closedErr != nil {
		return nil, m.closedErr
	}
	return h.acquireMapping(mappingKey{own: m}, func() (*mapping, error) {
		if p, own := h.allocations[m]; own {
			return &mapping{pool: p, size: m.handle.Size - m.handle.Offset, close: func() error { return nil }}, nil
		}
		return h.mapHandle(m.handle, m.file, cuda.ReadWrite)
	})
}

// mapHandle maps a pool. It takes the size of the allocation from the driver, if the
// driver knows it, and not from the handle. mu is held.
func (h *gpuContext) mapHandle(p Handle, file *os.File, access cuda.Access) (*mapping, error) {
	c := h.context
	if p.Kind == IPC {
		base, err := c.OpenIPC(p.Name)
		if err != nil {
			return nil, err
		}
		_, size, err := c.AllocationRange(base)
		if cuda.HasCode(err, cuda.InvalidValue) || cuda.HasCode(err, cuda.NotFound) {
			size, err = p.Size, nil // the driver does not know the size of imported memory
		}
		if err == nil && size < p.Size {
			err = fmt.Errorf("the pool's allocation has %d bytes, its handle says %d", size, p.Size)
		}
		if err != nil {
			return nil, errors.Join(err, c.CloseIPC(base))
		}
		return &mapping{pool: base + cuda.Pointer(p.Offset), size: p.Size - p.Offset, close: func() error { return c.CloseIPC(base) }}, nil
	}
	a, err := c.ImportAllocation(file, p.Size)
	if err != nil {
		return nil, err
	}
	m, err := a.Map(access)
	if err := errors.Join(err, h.closeOrDeferLocked(a.Close)); err != nil { // the mapping keeps the memory
		if m != nil {
			err = errors.Join(err, h.closeOrDeferLocked(m.Close))
		}
		return nil, err
	}
	return &mapping{pool: m.Pointer() + cuda.Pointer(p.Offset), size: p.Size - p.Offset, close: m.Close, outlivesContext: true}, nil
}

var errLost = errors.New("the pool was lost when the GPU failed")

// markLost ends memory that is lost with its context.
func (m *Memory) markLost(c *cuda.Context, p cuda.Pointer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closedErr = errLost
	_ = c.Free(p) // it may be freed already
}

// close releases the memory, which has no users any more.
func (m *Memory) close() {
	m.mu.Lock()
	if m.closedErr == nil {
		m.closedErr = errors.New("the pool is closed")
	}
	m.mu.Unlock()
	m.gpu.mu.Lock()
	h := m.gpu.current
	m.gpu.mu.Unlock()
	// None of these calls can fail for memory that was made, unless the device has
	// failed; and no caller is left to report to.
	if h != nil {
		_ = h.run(func(h *gpuContext) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			var err error
			if own := h.mappings[mappingKey{own: m}]; own != nil {
				delete(h.mappings, mappingKey{own: m})
				err = h.unmapLocked(own)
			}
			if p, ok := h.allocations[m]; ok {
				delete(h.allocations, m)
				err = errors.Join(err, h.context.Free(p))
			}
			return err
		})
	}
	if m.allocation != nil {
		_ = m.allocation.Close()
	}
	if m.file != nil {
		_ = m.file.Close()
	}
}

// Sums computes checksums on the GPU. See transport.Device.
func (m *Memory) Sums(dst []uint32, l transport.Layout, blocks []uint32) ([]uint32, error) {
	err := m.withStream(func(lane *copyStream, pool cuda.Pointer) error {
		return lane.checksumBlocks(m.gpu.config.Groups, pool, l, blocks, func(_, _ int, sum uint32) { dst = append(dst, sum) })
	})
	if err != nil {
		return dst, fmt.Errorf("checksum blocks on gpu %d: %w", m.gpu.config.Ordinal, err)
	}
	return dst, nil
}

// withStream runs do with a stream and the address of the memory in its context.
func (m *Memory) withStream(do func(*copyStream, cuda.Pointer) error) error {
	return m.gpu.withContext(nil, func(h *gpuContext) error {
		own, err := m.acquireMapping(h)
		if err != nil {
			return err
		}
		defer func() { h.releaseMapping(own, time.Now()) }()
		lane, err := h.acquireStream()
		if err != nil {
			return err
		}
		return errors.Join(do(lane, own.pool), h.releaseStream(lane))
	})
}
