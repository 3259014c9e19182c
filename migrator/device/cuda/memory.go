package cuda

import (
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/cascadeinfer/cascade/migrator/device"
)

// Pointer is an address of device memory.
type Pointer uint64

// Alloc allocates device memory of a size in bytes.
func (c *Context) Alloc(size int64) (Pointer, error) {
	v := words{1: uint64(size)}
	err := c.do(cuMemAlloc, &v, nil)
	return Pointer(v[0]), err
}

// Free frees the memory of Alloc. No work on it may be in progress.
func (c *Context) Free(p Pointer) error { return c.do(cuMemFree, &words{uint64(p)}, nil) }

// AllocationRange returns the base and the size of the allocation that an address is in.
func (c *Context) AllocationRange(p Pointer) (Pointer, int64, error) {
	v := words{2: uint64(p)}
	err := c.do(cuMemGetAddressRange, &v, nil)
	return Pointer(v[0]), int64(v[1]), err
}

// HostMemory is pinned memory of this process that the device can reach.
type HostMemory struct {
	context *Context
	at      unsafe.Pointer // memory of C, or a mapping
	size    int64
	pointer Pointer
	owned   bool
	closed  atomic.Bool
}

// Flags of host memory: usable from every context, and with a device address.
const hostFlags = 1 | 2

// AllocHost allocates pinned memory of a size in bytes.
func (c *Context) AllocHost(size int64) (*HostMemory, error) {
	v := words{1: uint64(size), 2: hostFlags}
	if err := c.do(cuMemHostAlloc, &v, nil); err != nil {
		return nil, err
	}
	h := &HostMemory{context: c, at: device.Memory(v[0]), size: size, owned: true}
	return h.findPointer()
}

// RegisterHost pins memory outside Go's heap: a mapping. It must stay mapped until Close.
func (c *Context) RegisterHost(b []byte) (*HostMemory, error) {
	at := unsafe.Pointer(unsafe.SliceData(b))
	if err := c.do(cuMemHostRegister, &words{uint64(uintptr(at)), uint64(len(b)), hostFlags}, nil); err != nil {
		return nil, err
	}
	h := &HostMemory{context: c, at: at, size: int64(len(b))}
	return h.findPointer()
}

// findPointer sets the memory's device address, or releases the memory.
func (h *HostMemory) findPointer() (*HostMemory, error) {
	v := words{1: uint64(uintptr(h.at))}
	if err := h.context.do(cuMemHostGetDevicePointer, &v, nil); err != nil {
		h.Close()
		return nil, err
	}
	h.pointer = Pointer(v[0])
	return h, nil
}

// Bytes returns the memory. It must not be used after Close.
func (h *HostMemory) Bytes() []byte { return unsafe.Slice((*byte)(h.at), h.size) }

// Uint32s returns the memory as words. See Bytes.
func (h *HostMemory) Uint32s() []uint32 { return unsafe.Slice((*uint32)(h.at), h.size/4) }

// Uint64s returns the memory as words. See Bytes.
func (h *HostMemory) Uint64s() []uint64 { return unsafe.Slice((*uint64)(h.at), h.size/8) }

// Pointer returns the memory's device address.
func (h *HostMemory) Pointer() Pointer { return h.pointer }

// Close frees or unpins the memory. After it has succeeded, further calls do nothing.
func (h *HostMemory) Close() error {
	if h.closed.Swap(true) {
		return nil
	}
	f := cuMemHostUnregister
	if h.owned {
		f = cuMemFreeHost
	}
	err := h.context.do(f, &words{uint64(uintptr(h.at))}, nil)
	if err != nil {
		h.closed.Store(false)
	}
	return err
}

// Copies begin when everything submitted to s before is done, and return before they are
// done.

// Copy copies between two addresses of device memory, on one device or on two peers.
func (s *Stream) Copy(dst, src Pointer, size int64) error {
	return s.context.do(cuMemcpyDtoDAsync, &words{uint64(dst), uint64(src), uint64(size), s.handle}, nil)
}

// CopyToDevice copies size bytes of host memory at offset to the device.
func (s *Stream) CopyToDevice(dst Pointer, h *HostMemory, offset, size int64) error {
	return s.context.do(cuMemcpyHtoDAsync, &words{uint64(dst), uint64(uintptr(h.at)) + uint64(offset), uint64(size), s.handle}, nil)
}

// CopyToHost copies from the device into host memory at offset.
func (s *Stream) CopyToHost(h *HostMemory, offset int64, src Pointer, size int64) error {
	return s.context.do(cuMemcpyDtoHAsync, &words{uint64(uintptr(h.at)) + uint64(offset), uint64(src), uint64(size), s.handle}, nil)
}

// Fill fills device memory with a byte.
func (s *Stream) Fill(dst Pointer, value byte, size int64) error {
	return s.context.do(cuMemsetD8Async, &words{uint64(dst), uint64(value), uint64(size), s.handle}, nil)
}

// SupportsBatches reports whether the driver copies many pieces in one call.
func (d *Driver) SupportsBatches() bool {
	return d.has(cuMemcpyBatchAsyncV2) || d.has(cuMemcpyBatchAsync)
}

// Batch is the reusable memory of CopyBatch.
type Batch struct{ words []uint64 }

// CopyBatch copies n pieces between addresses of device memory in one call: piece returns
// the addresses and the size of piece i. It must not be called unless the driver
// SupportsBatches.
func (s *Stream) CopyBatch(b *Batch, n int, piece func(i int) (dst, src Pointer, size int64)) error {
	if n == 0 {
		return nil
	}
	if cap(b.words) < 3*n {
		b.words = make([]uint64, 3*n)
	}
	w := b.words[:3*n]
	for i := range n {
		dst, src, size := piece(i)
		w[i], w[n+i], w[2*n+i] = uint64(dst), uint64(src), uint64(size)
	}
	f := cuMemcpyBatchAsyncV2
	if !s.context.driver.has(f) {
		f = cuMemcpyBatchAsync
	}
	return s.context.do(f, &words{uint64(n), s.handle}, unsafe.Pointer(&w[0]))
}

// IPCHandle is the name by which another process of this host opens an allocation of
// cuMemAlloc.
type IPCHandle [64]byte

// IPCHandle returns the handle of the allocation that an address is in. Memory that was
// imported, or mapped by Allocation.Map, has none.
func (c *Context) IPCHandle(p Pointer) (IPCHandle, error) {
	var h IPCHandle
	err := c.do(cuIpcGetMemHandle, &words{uint64(p)}, unsafe.Pointer(&h))
	return h, err
}

// OpenIPC maps an allocation of another process. The driver rejects those of this
// process.
func (c *Context) OpenIPC(h IPCHandle) (Pointer, error) {
	var v words
	err := c.do(cuIpcOpenMemHandle, &v, unsafe.Pointer(&h))
	return Pointer(v[0]), err
}

// CloseIPC unmaps what OpenIPC mapped.
func (c *Context) CloseIPC(p Pointer) error {
	return c.do(cuIpcCloseMemHandle, &words{uint64(p)}, nil)
}

// DMABuf returns a descriptor by which another device registers device memory, and the
// offset of p in it: a descriptor covers whole pages of the host. The memory must be in
// one allocation. The device must support it; see Device.DMABuf.
func (c *Context) DMABuf(p Pointer, size int64) (f *os.File, offset int64, err error) {
	page := Pointer(os.Getpagesize())
	first, last := p&^(page-1), (p+Pointer(size)+page-1)&^(page-1)
	v := words{1: uint64(first), 2: uint64(last - first)}
	if err := c.do(cuMemGetHandleForAddressRange, &v, nil); err != nil {
		return nil, 0, err
	}
	return newDescriptor(v[0], "dma-buf"), int64(p - first), nil
}

// newDescriptor returns a file descriptor that the driver has made. Child processes do
// not inherit it.
func newDescriptor(word uint64, name string) *os.File {
	fd := int(int32(word))
	syscall.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), name)
}
