package cuda

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	rdma "github.com/cascadeinfer/cascade/migrator/device/verbs"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
	"github.com/cascadeinfer/cascade/migrator/transport/verbs"
)

var _ verbs.Exporter = (*Memory)(nil)

// moved is a pool that begins somewhere inside its allocation, as one of PyTorch's
// does.
func moved(t testing.TB, g *GPU, l transport.Layout, by int64) (*transport.Memory, mirror) {
	t.Helper()
	larger := l
	larger.Regions = slices.Clone(l.Regions)
	larger.Regions[0].Offset += by
	larger.Blocks += int(by/larger.Regions[0].Stride) + 2
	whole, err := Allocate(g, VMM, larger)
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Close()
	d := whole.Device.(*Memory)
	h := d.Handle()
	h.Offset = by
	f, err := d.Descriptor()
	if err != nil {
		t.Fatal(err)
	}
	m, err := Attach(g, h, f, l)
	if err != nil {
		t.Fatal(err)
	}
	m.Bytes = make([]byte, l.MinSize())
	return m, mirror{t, m.Device.(*Memory), m.Bytes}
}

// TestDMABuf reads a pool through its descriptor, wherever in its pages it begins.
func TestDMABuf(t *testing.T) {
	control(t) // what a real one stands for, a processor does not see
	g := gpu(t)
	for _, by := range []int64{0, 4096, 5000, 1 << 20} {
		m, mirror := moved(t, g, small, by)
		pattern(m.Bytes)
		mirror.Store()
		f, offset, err := m.Device.(*Memory).DMABuf()
		if err != nil {
			t.Fatal(err)
		}
		if want := by % int64(os.Getpagesize()); offset != want {
			t.Errorf("a pool at %d is at %d of its descriptor, want %d", by, offset, want)
		}
		if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Error("children inherit the descriptor")
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
	// A pool of cuMemAlloc has one, too.
	m, _ := made(t, g, IPC, small)
	defer m.Close()
	f, _, err := m.Device.(*Memory).DMABuf()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// TestDMABufOffered asks whatever driver there is, which may refuse.
func TestDMABufOffered(t *testing.T) {
	g := gpu(t)
	for _, kind := range []Kind{IPC, VMM} {
		m, _ := made(t, g, kind, small)
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

// TestDMABufStays has the address of a pool that a NIC may know stay, for as long as
// the pool does.
func TestDMABufStays(t *testing.T) {
	c := control(t)
	g := gpu(t)
	m, _ := made(t, g, VMM, small)
	f, _, err := m.Device.(*Memory).DMABuf()
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	mappings := c.Live("mappings")
	g.unmapIdle(time.Now().Add(time.Hour))
	if n := c.Live("mappings"); n != mappings {
		t.Errorf("%d mappings are left of %d", n, mappings)
	}
	m.Close()
	if n := c.Live("mappings"); n != mappings-1 {
		t.Errorf("%d mappings are left of %d when the pool has gone", n, mappings)
	}
}

// TestNoDMABuf has drivers that offer none, refuse it, are too old, and fail.
func TestNoDMABuf(t *testing.T) {
	c := control(t)
	ask := func(g *GPU, kind Kind) error {
		files := open(t)
		m, _ := made(t, g, kind, small)
		f, _, err := m.Device.(*Memory).DMABuf()
		if err == nil {
			f.Close()
		}
		m.Close()
		if n := open(t); n != files {
			t.Errorf("%d files are open, %d were", n, files)
		}
		return err
	}
	c.Set("fake_no_dmabuf", 1)
	without := gpu(t)
	if err := ask(without, VMM); !errors.Is(err, ErrNoDMABuf) || !strings.Contains(err.Error(), "gpu 0") {
		t.Errorf("a driver that does not offer it: %v", err)
	}
	if err := without.Close(); err != nil { // or the next would have the same context
		t.Error(err)
	}
	c.Set("fake_no_dmabuf", 0)
	g := gpu(t)
	for code, none := range map[int]bool{1: true, 801: true, passing: false, forGood: false} {
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
	whole, err := os.ReadFile(library(t))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "libcuda.so.1")
	if err := os.WriteFile(path, bytes.ReplaceAll(whole, []byte("\x00cuMemGetHandleForAddressRange\x00"), []byte("\x00_uMemGetHandleForAddressRange\x00")), 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := cuda.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	old, err := NewGPU(GPUConfig{Driver: d})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := ask(old, IPC); !errors.Is(err, ErrNoDMABuf) {
		t.Errorf("a driver that is too old: %v", err)
	}
}

// open is how many files this process has open.
func open(t testing.TB) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// byRDMA is transport verbs with a server of its own.
type byRDMA struct {
	*verbs.Transport
	address atomic.Value
}

func (s *byRDMA) Run(ctx context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: s.Handler(), Protocols: new(http.Protocols)}
	server.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	s.address.Store(l.Addr().String())
	err = s.Transport.Run(ctx)
	server.Close()
	<-done
	return err
}

func overRDMA(t testing.TB, m *transport.Memory) *byRDMA {
	t.Helper()
	l, err := rdma.Open(fake.Verbs(t))
	if err != nil {
		t.Fatal(err)
	}
	s := &byRDMA{}
	s.address.Store("")
	s.Transport, err = verbs.New(verbs.Config{Library: l, Address: func() string { return s.address.Load().(string) }, Pool: transporttest.Pool{M: m}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestByNIC is transport verbs between pools on GPUs, which begin within their pages.
func TestByNIC(t *testing.T) {
	c := control(t)
	g := warm(t, 0)
	transporttest.Run(t, func(t *testing.T, source, target transport.Layout) transporttest.Pair {
		end := func(l transport.Layout) transporttest.End {
			m, mirror := moved(t, g, l, 5000)
			return transporttest.End{Transport: overRDMA(t, m), Memory: m, Mirror: mirror}
		}
		return transporttest.Pair{Source: end(source), Target: end(target)}
	})
	g.unmapIdle(time.Now().Add(time.Hour))
	if n := c.Live("mappings"); n != 0 {
		t.Errorf("%d pools are mapped still", n)
	}
}

// TestNoDMABufBounces has GPUs that no NIC reaches: blocks go by RDMA all the same, by
// way of the hosts' memory.
func TestNoDMABufBounces(t *testing.T) {
	c := control(t)
	c.Set("fake_no_dmabuf", 1)
	g := warm(t, 0)
	registered := c.Calls("cuMemHostRegister_v2")
	transporttest.Run(t, func(t *testing.T, source, target transport.Layout) transporttest.Pair {
		end := func(l transport.Layout) transporttest.End {
			m, mirror := made(t, g, VMM, l)
			if _, _, err := m.Device.(*Memory).DMABuf(); !errors.Is(err, ErrNoDMABuf) {
				t.Errorf("a pool that a NIC reaches: %v", err)
			}
			return transporttest.End{Transport: overRDMA(t, m), Memory: m, Mirror: mirror}
		}
		return transporttest.Pair{Source: end(source), Target: end(target)}
	})
	if c.Calls("cuMemHostRegister_v2") == registered || c.Live("registered") != 0 {
		t.Errorf("the GPU was told of slots %d times, and knows %d still", c.Calls("cuMemHostRegister_v2")-registered, c.Live("registered"))
	}
}
