package cuda

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	rdma "github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
	"github.com/cascadeinfer/cascade/migrator/transport/verbs"
)

var _ verbs.Exporter = (*Memory)(nil)

// newOffsetPool returns a pool that begins inside its allocation, as PyTorch's pools do.
func newOffsetPool(t testing.TB, g *GPU, l transport.Layout, by int64) (*transport.Memory, mirror) {
	t.Helper()
	larger := l
	larger.Regions = slices.Clone(l.Regions)
	larger.Regions[0].Offset += by
	larger.Blocks += int(by/larger.Regions[0].Stride) + 2
	whole := testkit.Must(Allocate(g, VMM, larger))
	defer whole.Close()
	d := whole.Device.(*Memory)
	h := d.Handle()
	h.Offset = by
	f := testkit.Must(d.Descriptor())
	m := testkit.Must(Attach(g, h, f, l))
	m.Bytes = make([]byte, l.MinSize())
	return m, mirror{t, m.Device.(*Memory), m.Bytes}
}

// TestDMABuf reads a pool through its descriptor, wherever in its pages it begins.
func TestDMABuf(t *testing.T) {
	newControl(t) // a processor cannot read a real dma-buf
	g := newGPU(t)
	for _, by := range []int64{0, 4096, 5000, 1 << 20} {
		m, mirror := newOffsetPool(t, g, small, by)
		transporttest.End{Memory: m, Mirror: mirror}.Fill(1)
		f, offset, err := m.Device.(*Memory).DMABuf()
		testkit.NoError(t, err)
		if want := by % int64(os.Getpagesize()); offset != want {
			t.Errorf("a pool at %d is at offset %d of its descriptor, want %d", by, offset, want)
		}
		if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Error("child processes inherit the descriptor")
		}
		first, err := f.Seek(0, 1) // where the fake's range begins
		got := make([]byte, len(m.Bytes))
		if n, bad := f.ReadAt(got, first+offset); err != nil || bad != nil || n != len(got) || !bytes.Equal(got, m.Bytes) {
			t.Errorf("a pool at %d: its descriptor has other bytes: %v, %v", by, err, bad)
		}
		g.unmapIdle(time.Now().Add(time.Hour))
		if _, err := m.Device.Sums(nil, m.Layout, []uint32{0}); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		m.Close()
	}
	// A pool of cuMemAlloc has a descriptor too.
	m, _ := newPool(t, g, IPC, small)
	defer m.Close()
	f, _, err := m.Device.(*Memory).DMABuf()
	testkit.NoError(t, err)
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// TestDMABufOffered exports from the present driver, which may refuse.
func TestDMABufOffered(t *testing.T) {
	g := newGPU(t)
	for _, kind := range []Kind{IPC, VMM} {
		m, _ := newPool(t, g, kind, small)
		f, offset, err := m.Device.(*Memory).DMABuf()
		switch {
		case errors.Is(err, ErrNoDMABuf):
			t.Logf("kind %d: %v", kind, err)
		case err != nil:
			t.Errorf("kind %d: %v", kind, err)
		default:
			if offset < 0 || offset >= int64(os.Getpagesize()) {
				t.Errorf("kind %d: the pool begins at %d of its first page", kind, offset)
			}
			f.Close()
		}
		m.Close()
	}
}

// TestDMABufStays checks that the address of a pool that a NIC may know stays mapped as
// long as the pool exists.
func TestDMABufStays(t *testing.T) {
	c := newControl(t)
	g := newGPU(t)
	m, _ := newPool(t, g, VMM, small)
	f, _, err := m.Device.(*Memory).DMABuf()
	testkit.NoError(t, err)
	f.Close()
	mappings := c.Live("mappings")
	g.unmapIdle(time.Now().Add(time.Hour))
	if n := c.Live("mappings"); n != mappings {
		t.Errorf("%d mappings are left of %d", n, mappings)
	}
	m.Close()
	if n := c.Live("mappings"); n != mappings-1 {
		t.Errorf("%d mappings are left of %d after the pool was closed", n, mappings)
	}
}

// TestNoDMABuf covers drivers that do not support dma-buf, refuse it, are too old, or
// fail.
func TestNoDMABuf(t *testing.T) {
	c := newControl(t)
	ask := func(g *GPU, kind Kind) error {
		files := countOpenFiles(t)
		m, _ := newPool(t, g, kind, small)
		f, _, err := m.Device.(*Memory).DMABuf()
		if err == nil {
			f.Close()
		}
		m.Close()
		if n := countOpenFiles(t); n != files {
			t.Errorf("%d files are open, %d were", n, files)
		}
		return err
	}
	c.Set("fake_no_dmabuf", 1)
	without := newGPU(t)
	if err := ask(without, VMM); !errors.Is(err, ErrNoDMABuf) || !strings.Contains(err.Error(), "gpu 0") {
		t.Errorf("a driver without support: %v", err)
	}
	if err := without.Close(); err != nil { // or the next GPU would have the same context
		t.Error(err)
	}
	c.Set("fake_no_dmabuf", 0)
	g := newGPU(t)
	for code, none := range map[int]bool{1: true, 801: true, transientCode: false, stickyCode: false} {
		c.Fail("cuMemGetHandleForAddressRange", 1, code)
		err := ask(g, VMM)
		var failed *cuda.Error
		if errors.Is(err, ErrNoDMABuf) != none || !errors.As(err, &failed) || failed.Call != "cuMemGetHandleForAddressRange" || int(failed.Code) != code {
			t.Errorf("code %d: %v", code, err)
		}
		if err := ask(g, VMM); err != nil {
			t.Errorf("after code %d: %v", code, err)
		}
	}
	path := fake.Copy(t, driverPath(t), "cuMemGetHandleForAddressRange")
	d := testkit.Must(cuda.Open(path))
	old := testkit.Must(NewGPU(GPUConfig{Driver: d}))
	defer old.Close()
	if err := ask(old, IPC); !errors.Is(err, ErrNoDMABuf) {
		t.Errorf("an old driver: %v", err)
	}
}

// countOpenFiles returns the number of open files of this process.
func countOpenFiles(t testing.TB) int {
	t.Helper()
	names := testkit.Must(os.ReadDir("/proc/self/fd"))
	return len(names)
}

// servedVerbs is transport verbs with a server of its own.
type servedVerbs struct {
	*verbs.Transport
	server transporttest.HTTPServer
}

func (s *servedVerbs) Run(ctx context.Context) error {
	return s.server.Serve(ctx, s.Handler(), s.Transport.Run)
}

func newServedVerbs(t testing.TB, m *transport.Memory) *servedVerbs {
	t.Helper()
	l, err := rdma.Open(fake.Verbs(t))
	testkit.NoError(t, err)
	s := &servedVerbs{}
	s.Transport, err = verbs.New(verbs.Config{Library: l, Address: s.server.Address, Pool: transporttest.Pool{M: m}})
	testkit.NoError(t, err)
	return s
}

// TestVerbsBetweenGPUs runs the suite of transport verbs between pools on GPUs that begin
// within their pages.
func TestVerbsBetweenGPUs(t *testing.T) {
	c := newControl(t)
	g := newWarmGPU(t, 0)
	transporttest.RunShort(t, func(t *testing.T, source, target transport.Layout) transporttest.Pair {
		end := func(l transport.Layout) transporttest.End {
			m, mirror := newOffsetPool(t, g, l, 5000)
			return transporttest.End{Transport: newServedVerbs(t, m), Memory: m, Unbound: true, Mirror: mirror}
		}
		return transporttest.Pair{Source: end(source), Target: end(target)}
	})
	g.unmapIdle(time.Now().Add(time.Hour))
	if n := c.Live("mappings"); n != 0 {
		t.Errorf("%d pools are still mapped", n)
	}
}

// TestNoDMABufBounces checks that RDMA carries blocks of GPUs that no NIC reaches,
// through host memory.
func TestNoDMABufBounces(t *testing.T) {
	c := newControl(t)
	c.Set("fake_no_dmabuf", 1)
	g := newWarmGPU(t, 0)
	registered := c.Calls("cuMemHostRegister_v2")
	transporttest.RunShort(t, func(t *testing.T, source, target transport.Layout) transporttest.Pair {
		end := func(l transport.Layout) transporttest.End {
			m, mirror := newPool(t, g, VMM, l)
			if _, _, err := m.Device.(*Memory).DMABuf(); !errors.Is(err, ErrNoDMABuf) {
				t.Errorf("DMABuf of a pool that no NIC reaches: %v", err)
			}
			return transporttest.End{Transport: newServedVerbs(t, m), Memory: m, Unbound: true, Mirror: mirror}
		}
		return transporttest.Pair{Source: end(source), Target: end(target)}
	})
	if c.Calls("cuMemHostRegister_v2") == registered || c.Live("registered") != 0 {
		t.Errorf("bounce buffers were registered %d times, and %d are still registered", c.Calls("cuMemHostRegister_v2")-registered, c.Live("registered"))
	}
}
