package transporttest

import (
	"errors"
	"slices"
	"sync"

	"github.com/cascadeinfer/cascade/migrator/transport"
)

// FakeDevice is a device whose memory transports reach only by its methods, and the
// Mirror of it. It is safe for concurrent use.
type FakeDevice struct {
	// Fail is the error of Gather and Scatter, nil for success. It is set while the
	// device is not in use.
	Fail error

	mu    sync.Mutex
	inner *transport.Memory
	copy  []byte
}

var (
	_ transport.Device = (*FakeDevice)(nil)
	_ Mirror           = (*FakeDevice)(nil)
)

// NewFakeDevice returns a device with a pool of a layout, which has checksums like a
// GPU's, and its Memory, whose Bytes are the tests' copy.
func NewFakeDevice(l transport.Layout) (*FakeDevice, *transport.Memory) {
	l.Checksum = transport.Multiply
	c := &FakeDevice{inner: HeapMemory(l)}
	c.copy = slices.Clone(c.inner.Bytes)
	return c, &transport.Memory{Layout: l, Bytes: c.copy, Device: c}
}

// Sums implements transport.Device.
func (c *FakeDevice) Sums(dst []uint32, _ transport.Layout, blocks []uint32) ([]uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inner.Sums(dst, blocks), nil
}

// Gather implements transport.Device.
func (c *FakeDevice) Gather(dst []byte, _ transport.Layout, blocks []uint32) error {
	return c.forEachPart(dst, blocks, func(part, packed []byte) { copy(packed, part) })
}

// Scatter implements transport.Device.
func (c *FakeDevice) Scatter(_ transport.Layout, blocks []uint32, src []byte) error {
	return c.forEachPart(src, blocks, func(part, packed []byte) { copy(part, packed) })
}

// forEachPart calls f with the parts of blocks, and their places among packed ones.
func (c *FakeDevice) forEachPart(packed []byte, blocks []uint32, f func(part, packed []byte)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Fail != nil {
		return c.Fail
	}
	if int64(len(packed)) != int64(len(blocks))*c.inner.BlockBytes() {
		return errors.New("the packed blocks have another length")
	}
	for _, b := range blocks {
		for r, g := range c.inner.Regions {
			f(c.inner.RegionBytes(b, r), packed[:g.Bytes])
			packed = packed[g.Bytes:]
		}
	}
	return nil
}

// Store implements Mirror.
func (c *FakeDevice) Store() { c.withLock(func() { copy(c.inner.Bytes, c.copy) }) }

// Load implements Mirror.
func (c *FakeDevice) Load() { c.withLock(func() { copy(c.copy, c.inner.Bytes) }) }

func (c *FakeDevice) withLock(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}
