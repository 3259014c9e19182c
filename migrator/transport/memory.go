package transport

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
)

// Memory is an engine's pool, mapped into this process. It is shared by pointer, never
// copied. A user holds it while it reads or writes Bytes, so that the memory stays mapped
// for its users when the engine ends.
type Memory struct {
	Layout
	Bytes []byte
	// File is the shared memory behind Bytes, nil for none. Transports that give a peer
	// access to the memory need it, and pass it on read-only.
	File *os.File
	// Device is the device that has the memory, nil for host memory. With a device,
	// Bytes and File are nil, and transports use the device's own means, or copy through
	// host memory.
	Device Device
	// Unmap releases Bytes and File. It is called once, after Close and the last
	// Release; nil means that there is nothing to release.
	Unmap func()

	mu     sync.Mutex
	holds  int
	closed bool
}

// Device is memory that this process can reach only through a device. It is safe for
// concurrent use.
type Device interface {
	// Sums appends the checksums of blocks of a layout to dst, as Memory.Sums does.
	Sums(dst []uint32, l Layout, blocks []uint32) ([]uint32, error)
	// Gather copies blocks of a layout to dst, which has exactly their size: packed, all
	// regions of one block before the next block.
	Gather(dst []byte, l Layout, blocks []uint32) error
	// Scatter copies packed blocks from src into the memory. When it returns the memory
	// does not change any more.
	Scatter(l Layout, blocks []uint32, src []byte) error
}

// Pool provides the memory of the local engine (package migrator/kvport). It reports false
// while the engine is away. After a restart the engine has another Memory.
type Pool interface {
	Memory() (*Memory, bool)
}

// CheckDevice returns why the device of a pool cannot copy into or out of it now, or nil.
// The probes of transports that copy through host memory use it. It returns nil while the
// engine is away.
func CheckDevice(p Pool) error {
	m, ok := p.Memory()
	if !ok {
		return nil
	}
	d, ok := m.Device.(interface{ CheckDevice() error })
	if !ok || !m.Hold() {
		return nil
	}
	defer m.Release()
	return d.CheckDevice()
}

// ErrUnsupportedMemory is the error of the probe of a transport that works, but does not
// carry the kind of memory that the engine's pool is in. It requires no repair.
var ErrUnsupportedMemory = errors.New("the transport does not carry the kind of memory of the engine's pool")

// ErrEngineAway is the error of the probe of a transport while the engine is away: whether
// the transport works is not known.
var ErrEngineAway = errors.New("the engine's memory is not mapped: the engine is away")

// HoldHostMemory returns the memory of a pool and holds it; the caller must Release it. It
// fails for the memory of a device, which has no Bytes.
func HoldHostMemory(p Pool) (*Memory, error) {
	m, err := HoldMemory(p)
	if err == nil && m.Bytes == nil {
		m.Release()
		return nil, fmt.Errorf("%w: it is the memory of a device", ErrUnsupportedMemory)
	}
	return m, err
}

// HoldMemory is HoldHostMemory for memory of any kind.
func HoldMemory(p Pool) (*Memory, error) {
	if m, ok := p.Memory(); ok && m.Hold() {
		return m, nil
	}
	return nil, ErrEngineAway
}

// ChecksumBlocks computes the checksums of blocks of a pool, on the host or on a device.
func ChecksumBlocks(p Pool, blocks []uint32) (sums []uint32, err error) {
	m, err := HoldMemory(p)
	if err != nil {
		return nil, err
	}
	defer m.Release()
	for _, b := range blocks {
		if int64(b) >= int64(m.Blocks) {
			return nil, errors.New("the engine named a block that is not in its pool")
		}
	}
	sums = make([]uint32, 0, len(blocks)*len(m.Regions))
	if m.Device != nil {
		return m.Device.Sums(sums, m.Layout, blocks)
	}
	err = CatchFault(func() error {
		sums = m.Sums(sums, blocks)
		return nil
	})
	return sums, err
}

// Size returns the size of the memory in bytes; on a device, the size that its layout needs.
func (m *Memory) Size() int64 {
	if m.Device != nil {
		return m.MinSize()
	}
	return int64(len(m.Bytes))
}

// Hold keeps the memory mapped until Release. It reports false after Close.
func (m *Memory) Hold() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.holds++
	return true
}

// Release ends one Hold.
func (m *Memory) Release() {
	m.mu.Lock()
	m.holds--
	if m.holds < 0 {
		m.mu.Unlock()
		panic("internal error: Release of a memory without Hold")
	}
	m.unmapLocked()
}

// Close ends the memory: Hold reports false from now on, and the last Release unmaps it.
// Further calls do nothing.
func (m *Memory) Close() {
	m.mu.Lock()
	m.closed = true
	m.unmapLocked()
}

// unmapLocked unlocks mu, and unmaps a closed memory that has no holders.
func (m *Memory) unmapLocked() {
	unmap := m.Unmap
	if !m.closed || m.holds > 0 {
		unmap = nil
	} else {
		m.Unmap = nil
	}
	m.mu.Unlock()
	if unmap != nil {
		unmap()
	}
}

// RegionBytes returns region r of block b. It panics if either is out of range.
func (m *Memory) RegionBytes(b uint32, r int) []byte {
	g := m.Regions[r]
	if int64(b) >= int64(m.Blocks) {
		panic(fmt.Sprintf("internal error: block %d of a pool of %d", b, m.Blocks))
	}
	at := g.Offset + int64(b)*g.Stride
	return m.Bytes[at : at+g.Bytes : at+g.Bytes]
}

// Sums appends the checksum of each region of each block to dst. It reads Bytes.
func (m *Memory) Sums(dst []uint32, blocks []uint32) []uint32 {
	for _, b := range blocks {
		for r := range m.Regions {
			dst = append(dst, m.Checksum.Of(m.RegionBytes(b, r)))
		}
	}
	return dst
}

// pieceBytes is the number of bytes that are copied before they are summed: few enough to
// be in the core's cache still.
const pieceBytes = 64 << 10

// CopyAndChecksum copies src to dst, which has the same length, and returns the crc32
// (IEEE) sum, updated with the bytes of dst; 0 is the checksum of no bytes.
func CopyAndChecksum(dst, src []byte, sum uint32) uint32 {
	for len(src) > pieceBytes {
		copy(dst[:pieceBytes], src)
		sum = crc32.Update(sum, crc32.IEEETable, dst[:pieceBytes])
		dst, src = dst[pieceBytes:], src[pieceBytes:]
	}
	copy(dst, src)
	return crc32.Update(sum, crc32.IEEETable, dst)
}

// CatchFault runs f and turns a memory fault into an error, so that an engine that
// shortens the file behind its pool does not end this process.
func CatchFault(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface {
			runtime.Error
			Addr() uintptr
		}:
			err = fmt.Errorf("memory fault at %#x: a pool is shorter than its layout", r.Addr())
		default:
			panic(r)
		}
	}()
	return f()
}
