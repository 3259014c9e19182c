package verbs

import (
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// dmabufDevice is memory that only a descriptor reaches, as a GPU's with dma-buf: a file.
type dmabufDevice struct {
	file      *os.File
	fail      error // of DMABuf
	mayBounce bool
	bounced   atomic.Int32 // calls of Gather and Scatter
}

// poolOffset is where a pool begins in its file, a multiple of a page.
const poolOffset = 8192

func (c *dmabufDevice) wholeFile(l transport.Layout) *transport.Memory {
	m := &transport.Memory{Layout: l, Bytes: make([]byte, l.MinSize())}
	c.file.ReadAt(m.Bytes, poolOffset)
	return m
}

func (c *dmabufDevice) Sums(dst []uint32, l transport.Layout, blocks []uint32) ([]uint32, error) {
	return c.wholeFile(l).Sums(dst, blocks), nil
}

func (c *dmabufDevice) Gather(dst []byte, l transport.Layout, blocks []uint32) error {
	return c.forEachPart(dst, l, blocks, func(at int64, b []byte) error { _, err := c.file.ReadAt(b, at); return err })
}

func (c *dmabufDevice) Scatter(l transport.Layout, blocks []uint32, src []byte) error {
	return c.forEachPart(src, l, blocks, func(at int64, b []byte) error { _, err := c.file.WriteAt(b, at); return err })
}

// forEachPart calls f with the offset of each part in the file, and its bytes among
// packed ones.
func (c *dmabufDevice) forEachPart(b []byte, l transport.Layout, blocks []uint32, f func(at int64, b []byte) error) error {
	if c.bounced.Add(1); !c.mayBounce {
		return errors.New("the pool can be registered and must not be packed")
	}
	for _, block := range blocks {
		for _, r := range l.Regions {
			if err := f(poolOffset+r.Offset+int64(block)*r.Stride, b[:r.Bytes]); err != nil {
				return err
			}
			b = b[r.Bytes:]
		}
	}
	return nil
}

func (c *dmabufDevice) DMABuf() (*os.File, int64, error) {
	if c.fail != nil {
		return nil, 0, c.fail
	}
	fd, err := syscall.Dup(int(c.file.Fd()))
	return os.NewFile(uintptr(fd), "dmabuf"), poolOffset, err
}

// fileMirror keeps the test's copy of a device's memory.
type fileMirror struct {
	c *dmabufDevice
	b []byte
}

func (c fileMirror) Store() { c.c.file.WriteAt(c.b, poolOffset) }
func (c fileMirror) Load()  { c.c.file.ReadAt(c.b, poolOffset) }

func newDMABufEnd(t testing.TB, l transport.Layout) (transporttest.End, *dmabufDevice) {
	t.Helper()
	f := testkit.Must(os.CreateTemp(t.TempDir(), "card"))
	l.Checksum = transport.Multiply
	testkit.NoError(t, f.Truncate(poolOffset+l.MinSize()))
	c := &dmabufDevice{file: f}
	m := &transport.Memory{Layout: l, Device: c, Bytes: make([]byte, l.MinSize()), Unmap: func() { f.Close() }}
	return transporttest.End{Transport: newTransport(t, m), Memory: m, Unbound: true, Mirror: fileMirror{c, m.Bytes}}, c
}

// TestConformanceDMABuf runs the suite over memory that is registered as a dma-buf.
func TestConformanceDMABuf(t *testing.T) {
	newControl(t) // a real device takes no file for one
	requireNothingOpen(t)
	transporttest.RunShort(t, func(t *testing.T, source, target transport.Layout) transporttest.Pair {
		a, _ := newDMABufEnd(t, source)
		b, _ := newDMABufEnd(t, target)
		return transporttest.Pair{Source: a, Target: b}
	})
}

// TestDMABufFails covers a GPU that exports no dma-buf, at either end, and a NIC that
// rejects it or is too far: blocks go through host memory, which is logged once.
func TestDMABufFails(t *testing.T) {
	c := newControl(t)
	requireNothingOpen(t)
	l := layout(8, 512)
	for _, whose := range []string{"source", "target", "NIC", "far"} {
		from, a := newDMABufEnd(t, l)
		to, b := newDMABufEnd(t, l)
		why, bounced := "no dma-buf", a
		switch whose {
		case "source":
			a.fail = errors.New(why)
		case "target":
			b.fail = errors.New(why)
			bounced = b
		case "NIC":
			c.Fail("ibv_reg_dmabuf_mr", 1, int(syscall.EOPNOTSUPP))
			why = "ibv_reg_dmabuf_mr"
		case "far":
			from.Transport.(*servedTransport).config.Bounce = func() bool { return true }
			why = errTooFar.Error()
		}
		bounced.mayBounce = true
		end := from
		if bounced == b {
			end = to
		}
		var log testkit.Log
		end.Transport.(*servedTransport).config.Logger = log.Logger()
		link := transporttest.Start(t, transporttest.Pair{Source: from, Target: to})
		testkit.WaitFor(t, "Run to keep the device", func() bool { name, _ := end.Transport.(*servedTransport).Device(); return name != "" })
		for range 2 {
			if err := end.Transport.Probe(t.Context()); err != nil {
				t.Errorf("%s: %v", whose, err)
			}
		}
		if said := log.String(); whose != "NIC" && strings.Count(said, "through host memory") != 1 || !strings.Contains(said, why) {
			t.Errorf("%s: %s", whose, said)
		}
		link.RequirePull(link.Open(), link.Plan(8, 4))
		if n := bounced.bounced.Load(); n != 1 && whose != "NIC" {
			t.Errorf("%s: %d portions went through host memory, want 1", whose, n)
		}
		link.Stop()
	}
}
