package cuda

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// newMapping returns a mapping outside Go's heap, until the test ends.
func newMapping(t testing.TB, size int64) []byte {
	t.Helper()
	b := testkit.Must(unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE))
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

// run transfers blocks out of a pool into pinned and unpinned memory, and into another pool from both.
func (s *hostTransfer) run() (err error) {
	d, err := cuda.Open(s.lib)
	if err != nil {
		return err
	}
	g, err := NewGPU(GPUConfig{Driver: d})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	l := transport.Layout{Blocks: 4, Regions: []transport.Region{{Stride: 4096, Bytes: 4096}, {Offset: 4 * 4096, Stride: 512, Bytes: 500}}}
	var pools [2]*transport.Memory
	for i := range pools {
		if pools[i], err = Allocate(g, IPC, l); err != nil {
			return err
		}
		defer pools[i].Close()
	}
	from, to := pools[0].Device.(*Memory), pools[1].Device.(*Memory)
	whole := make([]byte, l.MinSize())
	transporttest.FillBytes(whole, 1)
	if _, err := from.WriteAt(whole, 0); err != nil {
		return err
	}
	blocks := []uint32{3, 0, 1, 2}
	pack := newMapping(s.t, 4*l.BlockBytes())
	unpin, err := from.Pin(pack)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unpin()) }()
	for _, b := range [][]byte{pack, make([]byte, len(pack))} {
		err := from.Gather(b, pools[0].Layout, blocks)
		if err == nil {
			err = to.Scatter(pools[1].Layout, blocks, b)
		}
		got := make([]byte, l.MinSize())
		if err == nil {
			_, err = to.ReadAt(got, 0)
		}
		if err != nil {
			return err
		}
		for _, g := range l.Regions {
			for i := range int64(l.Blocks) {
				if at := g.Offset + i*g.Stride; !bytes.Equal(got[at:at+g.Bytes], whole[at:at+g.Bytes]) {
					s.corrupt = errors.New("blocks differ")
				}
			}
		}
	}
	return nil
}

// TestPin checks that no processor copies to and from pinned memory, that nothing is left
// after unpin, and that a GPU whose context was made again copies as before.
func TestPin(t *testing.T) {
	c := newControl(t)
	g := newGPU(t)
	l := transport.Layout{Blocks: 8, Regions: []transport.Region{{Stride: 8192, Bytes: 8192}}}
	pool, mirror := newPool(t, g, VMM, l)
	defer pool.Close()
	transporttest.End{Memory: pool, Mirror: mirror}.Fill(1)
	m := pool.Device.(*Memory)
	pack := newMapping(t, l.MinSize()+4096)
	blocks := []uint32{7, 2}
	want := append(append([]byte(nil), pool.RegionBytes(7, 0)...), pool.RegionBytes(2, 0)...)
	gather := func(dst []byte) (allocated int) {
		t.Helper()
		before := c.Live("host")
		clear(dst)
		if err := m.Gather(dst, pool.Layout, blocks); err != nil || !bytes.Equal(dst, want) {
			t.Errorf("gathered %v: %v", bytes.Equal(dst, want), err)
		}
		return c.Live("host") - before
	}
	if _, err := m.Pin(nil); err == nil {
		t.Error("Pin of no memory succeeded")
	}
	unpin := testkit.Must(m.Pin(pack))
	if err := m.Gather(pack[:1], pool.Layout, blocks); err == nil {
		t.Error("a wrong length is accepted")
	}
	m.Sums(nil, pool.Layout, blocks) // makes a stream
	if n := gather(pack[4096:][:len(want)]); n != 0 {
		t.Errorf("%d staging buffers were made for a pinned mapping", n)
	}
	other := make([]byte, len(want))
	if n := gather(other); n != 1 {
		t.Errorf("%d staging buffers were made for unpinned memory, want 1", n)
	}
	c.Fail("cuLaunchKernel", 1, stickyCode)
	if err := m.Gather(pack[:len(want)], pool.Layout, blocks); !cuda.Sticky(err) {
		t.Errorf("Gather on a failing GPU: %v", err)
	}
	gather(pack[4096:][:len(want)])
	for l := range g.current.streams {
		if l.packed != nil {
			t.Error("a processor copied after the context was made again")
		}
	}
	if n := c.Live("registered"); n != 1 {
		t.Errorf("%d mappings are registered after the context was made again", n)
	}
	c.Fail("cuMemHostUnregister", 1, transientCode)
	if err := unpin(); err == nil || !strings.Contains(err.Error(), "stays pinned") {
		t.Errorf("unpin that fails: %v", err)
	}
	if err := unpin(); err != nil {
		t.Error(err)
	}
	if len(g.current.pins)+len(g.pins)+c.Live("registered") != 0 {
		t.Error("a pin is left")
	}
	c.Fail("cuMemHostRegister_v2", 1, transientCode)
	if _, err := m.Pin(pack); err == nil || len(g.pins) != 0 {
		t.Errorf("Pin that fails: %v", err)
	}
}
