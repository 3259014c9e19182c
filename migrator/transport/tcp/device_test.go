package tcp

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// card is a device whose memory no transport reaches but by its methods. Its mirror
// is the Bytes of its Memory, which the tests alone look at.
type card struct {
	mu    sync.Mutex
	inner *transport.Memory
	copy  []byte
	fail  error // of Gather and Scatter
}

func (c *card) Sums(dst []uint32, _ transport.Layout, blocks []uint32) ([]uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inner.Sums(dst, blocks), nil
}

// each calls f with the parts of blocks, and where they are among packed ones.
func (c *card) each(packed []byte, blocks []uint32, f func(part, packed []byte)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if int64(len(packed)) != int64(len(blocks))*c.inner.BlockBytes() {
		return errors.New("the packed blocks have another length")
	}
	for _, b := range blocks {
		for r, g := range c.inner.Regions {
			f(c.inner.Part(b, r), packed[:g.Bytes])
			packed = packed[g.Bytes:]
		}
	}
	return c.fail
}

func (c *card) Gather(dst []byte, _ transport.Layout, blocks []uint32) error {
	return c.each(dst, blocks, func(part, packed []byte) { copy(packed, part) })
}

func (c *card) Scatter(_ transport.Layout, blocks []uint32, src []byte) error {
	return c.each(src, blocks, func(part, packed []byte) { copy(part, packed) })
}

func (c *card) Store() { c.both(func() { copy(c.inner.Bytes, c.copy) }) }
func (c *card) Load()  { c.both(func() { copy(c.copy, c.inner.Bytes) }) }

func (c *card) both(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func cardEnd(t testing.TB, l transport.Layout, config Config) transporttest.End {
	l.Sum = transport.Multiply
	c := &card{inner: transporttest.Heap(l)}
	c.copy = slices.Clone(c.inner.Bytes)
	m := &transport.Memory{Layout: l, Bytes: c.copy, Device: c}
	config.Pool = transporttest.Pool{M: m}
	tr, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return transporttest.End{Transport: tr, Memory: m, Mirror: c}
}

func cards(t *testing.T, source, target transport.Layout) transporttest.Pair {
	return transporttest.Pair{Source: cardEnd(t, source, Config{}), Target: cardEnd(t, target, Config{})}
}

// Pools on devices are moved by way of the host. Under the race detector transport cuda's
// tests do the same, on a driver's memory.
func TestConformanceDevice(t *testing.T) {
	if raced {
		t.Skip("slow under the race detector")
	}
	transporttest.Run(t, cards)
}

func TestAllocationsDevice(t *testing.T) { transporttest.Allocations(t, cards) }

// A pull ends when either device fails.
func TestDeviceFails(t *testing.T) {
	l := transport.Layout{Blocks: 4, Regions: []transport.Region{{Stride: 64, Bytes: 64}}}
	for _, name := range []string{"source", "target"} {
		pair := cards(t, l, l)
		end := pair.Source
		if name == "target" {
			end = pair.Target
		}
		p := transporttest.Opened(t, pair)
		end.Mirror.(*card).fail = errors.New("the GPU has fallen off the bus")
		plan := transport.Plan{Src: []uint32{0, 3}, Dst: []uint32{1, 2}, Sums: pair.Source.Memory.Sums(nil, []uint32{0, 3})}
		start := time.Now()
		if _, err := p.Pull(t.Context(), plan); err == nil {
			t.Errorf("the %s's device fails: the pull does not", name)
		}
		if took := time.Since(start); took > stallTimeout/2 {
			t.Errorf("the %s's device fails: the pull takes %v", name, took)
		}
		p.Close()
	}
}
