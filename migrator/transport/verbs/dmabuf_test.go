package verbs

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// card is memory that only a descriptor reaches, as a GPU's with dma-buf: a file.
type card struct {
	file *os.File
	fail error // of DMABuf
}

// before is where a pool begins in its file, a page's multiple.
const before = 8192

func (c *card) whole(l transport.Layout) *transport.Memory {
	m := &transport.Memory{Layout: l, Bytes: make([]byte, l.End())}
	c.file.ReadAt(m.Bytes, before)
	return m
}

func (c *card) Sums(dst []uint32, l transport.Layout, blocks []uint32) ([]uint32, error) {
	return c.whole(l).Sums(dst, blocks), nil
}

func (c *card) Gather(dst []byte, l transport.Layout, blocks []uint32) error {
	return errors.New("nobody gathers what can be registered")
}

func (c *card) Scatter(l transport.Layout, blocks []uint32, src []byte) error {
	return errors.New("nobody scatters what can be registered")
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
	l.Sum = transport.Multiply
	if err := f.Truncate(before + l.End()); err != nil {
		t.Fatal(err)
	}
	c := &card{file: f}
	m := &transport.Memory{Layout: l, Device: c, Bytes: make([]byte, l.End()), Unmap: func() { f.Close() }}
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
// NIC that does not take it.
func TestDMABufFails(t *testing.T) {
	c := control(t)
	nothingLeft(t)
	l := layout(8, 512)
	for _, whose := range []string{"source", "target", "NIC"} {
		from, a := onCard(t, l)
		to, b := onCard(t, l)
		stop := runs(t, from, to)
		want := "no dma-buf"
		switch whose {
		case "source":
			a.fail = errors.New(want)
		case "target":
			b.fail = errors.New(want)
		case "NIC":
			c.Fail("ibv_reg_dmabuf_mr", 1, int(syscall.EOPNOTSUPP))
			want = "ibv_reg_dmabuf_mr"
		}
		p, err := to.Transport.Open(t.Context(), "b", exported(t, from, "a/1"))
		if err == nil {
			p.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", whose, err)
		}
		stop()
	}
}
