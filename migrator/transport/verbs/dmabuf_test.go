package verbs

import (
	"errors"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// card is memory that only a descriptor reaches, as a GPU's with dma-buf: a file.
type card struct {
	file      *os.File
	fail      error // of DMABuf
	mayBounce bool
	bounced   atomic.Int32 // calls of Gather and Scatter
}

// before is where a pool begins in its file, a page's multiple.
const before = 8192

func (c *card) whole(l transport.Layout) *transport.Memory {
	m := &transport.Memory{Layout: l, Bytes: make([]byte, l.MinSize())}
	c.file.ReadAt(m.Bytes, before)
	return m
}

func (c *card) Sums(dst []uint32, l transport.Layout, blocks []uint32) ([]uint32, error) {
	return c.whole(l).Sums(dst, blocks), nil
}

func (c *card) Gather(dst []byte, l transport.Layout, blocks []uint32) error {
	return c.packed(dst, l, blocks, func(at int64, b []byte) error { _, err := c.file.ReadAt(b, at); return err })
}

func (c *card) Scatter(l transport.Layout, blocks []uint32, src []byte) error {
	return c.packed(src, l, blocks, func(at int64, b []byte) error { _, err := c.file.WriteAt(b, at); return err })
}

// packed calls f with where parts are in the file, and their bytes among packed ones.
func (c *card) packed(b []byte, l transport.Layout, blocks []uint32, f func(at int64, b []byte) error) error {
	if c.bounced.Add(1); !c.mayBounce {
		return errors.New("nobody packs what can be registered")
	}
	for _, block := range blocks {
		for _, r := range l.Regions {
			if err := f(before+r.Offset+int64(block)*r.Stride, b[:r.Bytes]); err != nil {
				return err
			}
			b = b[r.Bytes:]
		}
	}
	return nil
}

func (c *card) DMABuf() (*os.File, int64, error) {
	if c.fail != nil {
		return nil, 0, c.fail
	}
	fd, err := syscall.Dup(int(c.file.Fd()))
	return os.NewFile(uintptr(fd), "dmabuf"), before, err
}

// copied keeps the test's copy of a card's memory.
type copied struct {
	c *card
	b []byte
}

func (c copied) Store() { c.c.file.WriteAt(c.b, before) }
func (c copied) Load()  { c.c.file.ReadAt(c.b, before) }

func onCard(t testing.TB, l transport.Layout) (transporttest.End, *card) {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "card")
	if err != nil {
		t.Fatal(err)
	}
	l.Checksum = transport.Multiply
	if err := f.Truncate(before + l.MinSize()); err != nil {
		t.Fatal(err)
	}
	c := &card{file: f}
	m := &transport.Memory{Layout: l, Device: c, Bytes: make([]byte, l.MinSize()), Unmap: func() { f.Close() }}
	return transporttest.End{Transport: over(t, m), Memory: m, Mirror: copied{c, m.Bytes}}, c
}

// TestConformanceDMABuf runs the suite over memory that is registered as a dma-buf.
func TestConformanceDMABuf(t *testing.T) {
	control(t) // a real device takes no file for one
	nothingLeft(t)
	transporttest.Run(t, func(t *testing.T, source, target transport.Layout) transporttest.Pair {
		a, _ := onCard(t, source)
		b, _ := onCard(t, target)
		return transporttest.Pair{Source: a, Target: b}
	})
}

// TestDMABufFails has a GPU that offers no dma-buf after all, at either end, and a
// NIC that does not take it or is too far: blocks go by way of the host, and the log says
// so once.
func TestDMABufFails(t *testing.T) {
	c := control(t)
	nothingLeft(t)
	l := layout(8, 512)
	for _, whose := range []string{"source", "target", "NIC", "far"} {
		from, a := onCard(t, l)
		to, b := onCard(t, l)
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
			from.Transport.(*served).config.Bounce = func() bool { return true }
			why = errTooFar.Error()
		}
		bounced.mayBounce = true
		end := from
		if bounced == b {
			end = to
		}
		var log safeBuffer
		end.Transport.(*served).config.Logger = slog.New(slog.NewTextHandler(&log, nil))
		stop := runs(t, from, to)
		for limit := time.Now().Add(patience); time.Now().Before(limit); runtime.Gosched() {
			if name, _ := end.Transport.(*served).Device(); name != "" {
				break // Run keeps the device from here on
			}
		}
		for range 2 {
			if err := end.Transport.Probe(t.Context()); err != nil {
				t.Errorf("%s: %v", whose, err)
			}
		}
		if said := log.String(); whose != "NIC" && strings.Count(said, "by way of host memory") != 1 || !strings.Contains(said, why) {
			t.Errorf("%s: %s", whose, said)
		}
		randomly(from.Memory.Bytes, rng(3))
		from.Mirror.Store()
		puller := opened(t, transporttest.Pair{Source: from, Target: to}, "a/1")
		p := plan(from.Memory, to.Memory, 8, rng(4))
		if _, err := puller.Pull(t.Context(), p); err != nil {
			t.Errorf("%s: %v", whose, err)
		}
		to.Mirror.Load()
		if sums := to.Memory.Sums(nil, p.Dst); !slices.Equal(sums, p.Sums) {
			t.Errorf("%s: other bytes have come", whose)
		}
		if n := bounced.bounced.Load(); n != 1 && whose != "NIC" {
			t.Errorf("%s: %d portions went by way of the host, want 1", whose, n)
		}
		if err := puller.Close(); err != nil {
			t.Error(err)
		}
		stop()
	}
}
