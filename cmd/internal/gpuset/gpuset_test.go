package gpuset

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// On a host without a driver, a Set costs nothing until a GPU is requested; then the error names
// what is missing.
func TestNoDriver(t *testing.T) {
	g := New(Config{CUDA: "libnone.so.1"})
	if d, err := g.PoolAllocator(Host, nil); d != nil || err != nil {
		t.Errorf("%v", err)
	}
	for name, err := range map[string]error{
		"an engine's":   func() error { _, err := g.PoolAllocator(CUDA, nil); return err }(),
		"a migrator's":  func() error { _, err := g.Attach(handle(t), nil, layout); return err }(),
		"one by number": func() error { _, err := g.Open(3); return err }(),
	} {
		if !errors.Is(err, device.ErrNoLibrary) && !errors.Is(err, device.ErrNoCgo) || !strings.Contains(err.Error(), "driver") && !strings.Contains(err.Error(), "CGO_ENABLED") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := g.PoolAllocator("gpu", nil); err == nil || !strings.Contains(err.Error(), `"host" or "cuda"`) {
		t.Errorf("%v", err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if _, err := (*Set)(nil).PoolAllocator(CUDA, nil); err == nil {
		t.Error("PoolAllocator of a nil Set succeeded")
	}
}

var layout = transport.Layout{Blocks: 4, Regions: []transport.Region{{Stride: 1024, Bytes: 1024}}}

// handle returns a valid handle of a 4 KiB pool that exists on no GPU.
func handle(t *testing.T) []byte {
	t.Helper()
	b := make([]byte, 120)
	b[0], b[49] = 1, 16
	return b
}

// A migrator attaches the engine's pool and reads the same bytes; afterwards nothing is left on the
// GPU.
func TestPool(t *testing.T) {
	library := fake.CUDA(t)
	c := fake.Open(t, library)
	inits, live := c.Calls("cuInit"), c.Live("")
	g := New(Config{CUDA: library})
	if n := c.Calls("cuInit") - inits; n != 0 {
		t.Errorf("the driver is started %d times before it is needed", n)
	}
	one := 1
	build, err := g.PoolAllocator(CUDA, &one)
	fake.RequireOpened(t, err)
	if _, err := g.Attach(handle(t), nil, layout); err == nil || !strings.Contains(err.Error(), "is not one of") {
		t.Errorf("a pool of an unknown GPU: %v", err)
	}
	engines, err := build(layout.MinSize())
	testkit.NoError(t, err)
	if _, err := engines.WriteAt([]byte("hello"), 1024); err != nil {
		t.Fatal(err)
	}
	name, file, err := engines.Share()
	testkit.NoError(t, err)
	if _, err := g.Attach(name[1:], dup(t, file), layout); err == nil {
		t.Error("half a handle is taken")
	}
	if _, err := g.Attach(name, dup(t, file), transport.Layout{Blocks: 1, Regions: []transport.Region{{Stride: 1 << 40, Bytes: 1 << 40}}}); err == nil {
		t.Error("a pool larger than its memory is taken")
	}
	migrators := New(Config{CUDA: library})
	c.Fail("cuDeviceGetUuid_v2", 1, 101) // the first GPU has failed, and the pool is on the second
	m, err := migrators.Attach(name, file, layout)
	testkit.NoError(t, err)
	got := make([]byte, layout.BlockBytes())
	if err := m.Device.Gather(got, m.Layout, []uint32{1}); err != nil || string(got[:5]) != "hello" {
		t.Errorf("%q, %v", got[:5], err)
	}
	m.Close()
	if err := errors.Join(engines.Close(), migrators.Close(), g.Close(), g.Close()); err != nil {
		t.Error(err)
	}
	if n := c.Live(""); n != live {
		t.Errorf("%d handles are alive, %d were", n, live)
	}
	if _, err := g.Open(0); err == nil {
		t.Error("closed GPUs are opened")
	}
	for _, index := range []int{-1, 64} {
		g := New(Config{CUDA: library})
		if _, err := g.Open(index); err == nil {
			t.Errorf("there is a gpu %d", index)
		}
	}
}

// dup duplicates a file descriptor for a function that closes it.
func dup(t *testing.T, f *os.File) *os.File {
	t.Helper()
	if f == nil {
		return nil
	}
	again, err := os.Open("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	testkit.NoError(t, err)
	return again
}
