package transport

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/cascadeinfer/cascade/migrator/internal/kernel"
)

// Region is where one part of every block lies: part of block b begins at
// Offset + b·Stride and is Bytes long.
type Region struct{ Offset, Stride, Bytes int64 }

// Layout is the shape of a pool. Two pools exchange blocks when their regions
// have equal Bytes, one by one; offsets, strides and counts may differ.
type Layout struct {
	Regions  []Region
	Blocks   int      // numbered from 0
	Checksum Checksum // how its blocks are summed
}

// Checksum is how the bytes of a region are summed. A plan has sums of its source's kind,
// whichever the target's is: one of the two may be on a GPU alone.
type Checksum uint32

const (
	// CRC32 is crc32 (IEEE): of pools that processors write.
	CRC32 Checksum = iota
	// Multiply is package kernel's sum: of pools on a GPU, which has no crc32.
	Multiply
)

func (s Checksum) String() string {
	switch s {
	case CRC32:
		return "crc32"
	case Multiply:
		return "multiply"
	}
	return fmt.Sprintf("sum %d", uint32(s))
}

// Of sums b.
func (s Checksum) Of(b []byte) uint32 {
	if s == Multiply {
		return kernel.Fold(kernel.Raw(b), int64(len(b)))
	}
	return crc32.ChecksumIEEE(b)
}

// BlockBytes is the size of a block, all regions together.
func (l Layout) BlockBytes() int64 {
	n := int64(0)
	for _, r := range l.Regions {
		n += r.Bytes
	}
	return n
}

// Packed is the layout of n blocks one after the other, all regions of one before the
// next, as Device.Gather has them.
func (l Layout) Packed(n int) Layout {
	out, size, at := Layout{Blocks: n, Checksum: l.Checksum}, l.BlockBytes(), int64(0)
	for _, r := range l.Regions {
		out.Regions = append(out.Regions, Region{Offset: at, Stride: size, Bytes: r.Bytes})
		at += r.Bytes
	}
	return out
}

// MinSize is the size of the smallest memory that the layout fits.
func (l Layout) MinSize() int64 {
	size := int64(0)
	for _, r := range l.Regions {
		size = max(size, r.Offset+int64(l.Blocks-1)*r.Stride+r.Bytes)
	}
	return size
}

// CheckCompatible reports why two pools cannot exchange blocks, or nil: their regions
// differ in number or size. How each is summed does not matter.
func (l Layout) CheckCompatible(other Layout) error {
	if len(l.Regions) != len(other.Regions) {
		return fmt.Errorf("layout: blocks of %d regions and of %d", len(l.Regions), len(other.Regions))
	}
	for i, r := range l.Regions {
		if r.Bytes != other.Regions[i].Bytes {
			return fmt.Errorf("layout: region %d has %d bytes and %d", i, r.Bytes, other.Regions[i].Bytes)
		}
	}
	return nil
}

// Validate reports the first reason why a layout does not describe a memory of that
// size, or nil: bad counts, regions that leave the memory, or that overlap
// their own next block.
func (l Layout) Validate(size int64) error {
	if l.Blocks <= 0 || len(l.Regions) == 0 {
		return errors.New("layout: blocks and regions must be positive")
	}
	for i, r := range l.Regions {
		if r.Offset < 0 || r.Bytes <= 0 || r.Stride < r.Bytes {
			return fmt.Errorf("layout: region %d: offset %d, stride %d, %d bytes: want offset ≥ 0 and stride ≥ bytes > 0", i, r.Offset, r.Stride, r.Bytes)
		}
		if last := int64(l.Blocks - 1); r.Bytes > size || r.Offset > size-r.Bytes || r.Stride > 0 && last > (size-r.Bytes-r.Offset)/r.Stride {
			return fmt.Errorf("layout: region %d of block %d ends after the memory's %d bytes", i, l.Blocks-1, size)
		}
	}
	return nil
}

// Memory is an engine's pool, mapped into this process. It is shared by
// pointer, never copied: whoever reads or writes Bytes holds it, so that an
// engine that goes takes the memory from nobody who is at work.
type Memory struct {
	Layout
	Bytes []byte
	// File is the shared memory behind Bytes, nil for none; transports that hand
	// the memory itself to a peer need it, and hand it on for reading only.
	File *os.File
	// Device is where the memory is when it is not the processor's; then Bytes and
	// File are nil, and transports reach it in its own way, or by way of the host.
	Device Device
	// Unmap gives Bytes and File back. It is called once, after Close and the
	// last Release; nil means that there is nothing to give back.
	Unmap func()

	mu     sync.Mutex
	holds  int
	closed bool
}

// Device is memory that this process reaches by a device alone. It is safe for
// concurrent use.
type Device interface {
	// Sums appends the checksums of blocks of a layout to dst, as Memory.Sums does.
	Sums(dst []uint32, l Layout, blocks []uint32) ([]uint32, error)
	// Gather copies blocks of a layout to dst, which is as long: packed, all regions
	// of one block before the next.
	Gather(dst []byte, l Layout, blocks []uint32) error
	// Scatter copies packed blocks from src into the memory. The memory does not
	// change any more when it returns.
	Scatter(l Layout, blocks []uint32, src []byte) error
}

// Pool is who has the own engine's memory: migrator/blocks. It reports false
// while the engine is away. An engine that comes back has another Memory.
type Pool interface {
	Memory() (*Memory, bool)
}

// CheckDevice says why a pool's device can copy nothing into or out of it now, or nil: for
// the probes of those who reach it by the host. An engine that is away is no reason.
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

// ErrUnsupportedMemory is what the probe of a transport says that works, but not with the kind
// of memory that the engine's pool is in. Nobody has to mend that.
var ErrUnsupportedMemory = errors.New("the engine's pool is in memory of a kind that this transport does not carry")

// HoldHostMemory returns the memory of a pool, held for the caller, who must Release it.
// It fails for memory on a device, which has no bytes.
func HoldHostMemory(p Pool) (*Memory, error) {
	m, err := HoldMemory(p)
	if err == nil && m.Bytes == nil {
		m.Release()
		return nil, fmt.Errorf("%w: a device's", ErrUnsupportedMemory)
	}
	return m, err
}

// HoldMemory is Hold, for memory of either kind.
func HoldMemory(p Pool) (*Memory, error) {
	if m, ok := p.Memory(); ok && m.Hold() {
		return m, nil
	}
	return nil, errors.New("the engine's memory is not mapped: the engine is away")
}

// ChecksumBlocks computes the checksums of blocks of a pool, wherever it is.
func ChecksumBlocks(p Pool, blocks []uint32) (sums []uint32, err error) {
	m, err := HoldMemory(p)
	if err != nil {
		return nil, err
	}
	defer m.Release()
	for _, b := range blocks {
		if int64(b) >= int64(m.Blocks) {
			return nil, errors.New("the engine names a block that is not in its pool")
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

// Size is how many bytes the memory has; on a device, how many its layout needs.
func (m *Memory) Size() int64 {
	if m.Device != nil {
		return m.MinSize()
	}
	return int64(len(m.Bytes))
}

// Hold keeps the memory mapped until Release. It reports false once the memory
// is closed.
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
		panic("internal error: a memory is released more often than it was held")
	}
	m.unmapLocked()
}

// Close lets the memory go: nobody can hold it any more, and it is unmapped when
// the last holder releases it. More calls do nothing.
func (m *Memory) Close() {
	m.mu.Lock()
	m.closed = true
	m.unmapLocked()
}

// unmapLocked unlocks mu, and unmaps where nobody holds a closed memory.
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

// RegionBytes is region r of block b. It panics when either is out of range.
func (m *Memory) RegionBytes(b uint32, r int) []byte {
	g := m.Regions[r]
	if int64(b) >= int64(m.Blocks) {
		panic(fmt.Sprintf("internal error: block %d of a pool of %d", b, m.Blocks))
	}
	at := g.Offset + int64(b)*g.Stride
	return m.Bytes[at : at+g.Bytes : at+g.Bytes]
}

// Sums appends the checksums of blocks to dst: that of each region, block by
// block. It reads Bytes.
func (m *Memory) Sums(dst []uint32, blocks []uint32) []uint32 {
	for _, b := range blocks {
		for r := range m.Regions {
			dst = append(dst, m.Checksum.Of(m.RegionBytes(b, r)))
		}
	}
	return dst
}

// piece is how much is copied before it is summed: small enough to be in the
// core's cache still.
const piece = 64 << 10

// CopyAndChecksum copies src to dst, which must be as long, and carries a crc32 (IEEE) on
// over what dst holds then; 0 is that of no bytes.
func CopyAndChecksum(dst, src []byte, sum uint32) uint32 {
	for len(src) > piece {
		copy(dst[:piece], src)
		sum = crc32.Update(sum, crc32.IEEETable, dst[:piece])
		dst, src = dst[piece:], src[piece:]
	}
	copy(dst, src)
	return crc32.Update(sum, crc32.IEEETable, dst)
}

// CatchFault runs f, and turns its access to a mapping whose file has become shorter
// into an error: an engine that misbehaves is not the end of this process.
func CatchFault(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface {
			runtime.Error
			Addr() uintptr
		}:
			err = fmt.Errorf("a pool is shorter than its layout: fault at %#x", r.Addr())
		default:
			panic(r)
		}
	}()
	return f()
}
