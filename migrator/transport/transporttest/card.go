package transporttest

import (
	"errors"
	"slices"
	"sync"

	"github.com/cascadeinfer/cascade/migrator/transport"
)

// FakeDevice is a device whose memory no transport reaches but by its methods, and the
// Mirror of it. It is safe for concurrent use.
type FakeDevice struct {
	// Fail is what Gather and Scatter return, nil for success. It is set while nobody
	// uses the card.
	Fail error

	mu    sync.Mutex
	inner *transport.Memory
	copy  []byte
}

var (
	_ transport.Device = (*FakeDevice)(nil)
	_ Mirror           = (*FakeDevice)(nil)
)

// NewFakeDevice returns a card with a pool of a layout, which is summed as GPUs do, and its
// Memory, whose Bytes are the tests' copy.
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
	return c.each(dst, blocks, func(part, packed []byte) { copy(packed, part) })
}

// Scatter implements transport.Device.
func (c *FakeDevice) Scatter(_ transport.Layout, blocks []uint32, src []byte) error {
	return c.each(src, blocks, func(part, packed []byte) { copy(part, packed) })
}

// each calls f with the parts of blocks, and where they are among packed ones.
func (c *FakeDevice) each(packed []byte, blocks []uint32, f func(part, packed []byte)) error {
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
func (c *FakeDevice) Store() { c.both(func() { copy(c.inner.Bytes, c.copy) }) }

// Load implements Mirror.
func (c *FakeDevice) Load() { c.both(func() { copy(c.copy, c.inner.Bytes) }) }

func (c *FakeDevice) both(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}
