//go:build cgo && linux

package inventory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/policies/links"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens a library until the test ends.
func open(t *testing.T, path string) *NVMLLibrary {
	t.Helper()
	l := testkit.Must(OpenNVML(NVMLConfig{Library: path}))
	t.Cleanup(func() { l.Close() })
	return l
}

// useLibrary opens the library, reads, watches until the fake's event, and closes. It
// joins what went wrong.
func useLibrary(path string) (in NVMLInventory, xids []uint64, err error) {
	l, err := OpenNVML(NVMLConfig{Library: path})
	if err != nil {
		return NVMLInventory{}, nil, err
	}
	in, err = l.Read()
	healths, unwell := l.ReadHealth()
	err = errors.Join(err, unwell)
	if unwell == nil && len(healths) != len(in.GPUs) {
		err = errors.Join(err, errors.New("two readings show different GPUs"))
	}
	for i := range min(len(healths), len(in.GPUs)) {
		if h, g := healths[i], in.GPUs[i]; err == nil && (h.UUID != g.UUID || h.PCI.Address != g.PCI.Address || !reflect.DeepEqual(h.Health, g.Health)) {
			err = fmt.Errorf("two readings differ: %+v and %+v", h, g)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	watched := l.WatchXids(ctx, func(gpu int, xid uint64) { xids = append(xids, uint64(gpu), xid); cancel() })
	closed := l.Close()
	if closed != nil { // what a caller would do, and so that the next use starts anew
		closed = errors.Join(closed, l.Close())
	}
	return in, xids, errors.Join(err, watched, closed)
}

// setFaultyHost makes the fake a host with everything that a library can report.
func setFaultyHost(t *testing.T) {
	for k, v := range map[string]string{"GPUS": "4", "LINKS": "direct", "MIG": "3", "SICK": "2", "XID": "1:79"} {
		t.Setenv("FAKE_NVML_"+k, v)
	}
}

func TestRead(t *testing.T) {
	path := fake.NVML(t)
	setFaultyHost(t)
	in, xids, err := useLibrary(path)
	testkit.NoError(t, err)
	if in.Driver != "999.1" || len(in.GPUs) != 4 || len(in.Peers) != 12 || !slices.Equal(xids, []uint64{1, 79}) {
		t.Fatalf("%+v, Xids %v", in, xids)
	}
	g := in.GPUs[1]
	if g.Index != 1 || g.UUID != "GPU-00000000-0000-0000-0000-000000000001" || g.Name != "Fake GPU" || g.Memory != (topology.Memory{Total: 80 << 30, Free: 60 << 30}) ||
		g.PCI.Address != "0000:20:00.0" || g.PCI.NUMA != 0 || g.PCI.Link != (topology.PCIe{Gen: 1, Width: 16, MaxGen: 5, MaxWidth: 16}) ||
		g.Copy != 2600*5120/8*links.Megabyte || g.MIG || g.Health.Problem() != "" || g.Health.Throttled != nil {
		t.Errorf("%+v", g)
	}
	if want := (topology.NVLink{Link: 3, Active: true, Version: 3, Remote: "0000:10:00.0"}); len(g.NVLinks) != 4 || g.NVLinks[3] != want {
		t.Errorf("%+v", g.NVLinks)
	}
	if h := in.GPUs[2].Health; h.ECC != 7 || !h.Remap || h.RemapFailed || !slices.Equal(h.Throttled, []string{"heat (hardware)"}) || h.Problem() == "" {
		t.Errorf("%+v", h)
	}
	if l := in.GPUs[2].NVLinks[0]; l.Active || l.Rate() != 0 {
		t.Errorf("%+v", l)
	}
	if !in.GPUs[3].MIG {
		t.Error("GPU 3 is not divided")
	}
	for _, p := range in.Peers {
		if !p.Read || !p.Write || p.NVLink != (p.From^1 == p.To) || p.Distance != links.NUMANode {
			t.Errorf("%+v", p)
		}
	}
}

func TestSwitchesAndRefusals(t *testing.T) {
	path := fake.NVML(t)
	t.Setenv("FAKE_NVML_LINKS", "switch")
	t.Setenv("FAKE_NVML_GPUS", "8")
	t.Setenv("FAKE_NVML_P2P", "no")
	l := open(t, path)
	in := testkit.Must(l.Read())
	for _, g := range in.GPUs {
		if n := len(g.NVLinks); n != 18 || !g.NVLinks[17].Switch || g.NVLinks[17].Version != 4 || g.NVLinks[17].Rate() != 25*links.Gigabyte {
			t.Errorf("%+v", g.NVLinks)
		}
	}
	for _, p := range in.Peers {
		want := links.NUMANode
		if p.From/4 != p.To/4 {
			want = links.System
		}
		if p.Read || p.Write || p.NVLink || p.Distance != want {
			t.Errorf("%+v", p)
		}
	}
}

// TestEachCallFails makes every call fail, the first time and the last.
func TestEachCallFails(t *testing.T) {
	path := fake.NVML(t)
	setFaultyHost(t)
	c := fake.Open(t, path)
	for number := range callCount {
		call := symbol(number)
		before := c.Calls(call)
		if _, _, err := useLibrary(path); err != nil {
			t.Fatal(err)
		}
		n := c.Calls(call) - before
		if n == 0 {
			t.Errorf("%s is never called", call)
		}
		for _, nth := range []int{1, n} {
			alive := c.Live("") // what a watch could not free, ends with the library
			c.Fail(call, nth, 999)
			_, _, err := useLibrary(path)
			var failed *CallError
			if !errors.As(err, &failed) || failed.Call != call || failed.Code != 999 || !strings.Contains(err.Error(), call) || !strings.Contains(err.Error(), "ERROR_UNKNOWN (999)") {
				t.Errorf("%s failed, call %d of %d: %v", call, nth, n, err)
			}
			c.Clear()
			if live := c.Live(""); live != alive {
				t.Fatalf("after %s failed, %d handles are alive, not %d", call, live, alive)
			}
		}
	}
}

func TestWhatIsNotSupportedIsLeftOut(t *testing.T) {
	path := fake.NVML(t)
	setFaultyHost(t)
	c := fake.Open(t, path)
	for number := requiredCalls; number < nvmlEventSetCreate; number++ {
		call := symbol(number)
		c.Fail(call, 1, codeNotSupported)
		if in, _, err := useLibrary(path); err != nil || len(in.GPUs) != 4 {
			t.Errorf("%s is not supported: %+v, %v", call, in, err)
		}
		c.Clear()
	}
}

// TestEventsNotSupported watches with a driver that has the functions for events but does
// not support them.
func TestEventsNotSupported(t *testing.T) {
	path := fake.NVML(t)
	l := open(t, path)
	fake.Open(t, path).Fail("nvmlEventSetCreate", 1, codeNotSupported)
	var failed *CallError
	if err := l.WatchXids(t.Context(), nil); !errors.As(err, &failed) || failed.Call != "nvmlEventSetCreate" || failed.Code != codeNotSupported {
		t.Errorf("%v", err)
	}
}

func TestLostGPU(t *testing.T) {
	path := fake.NVML(t)
	setFaultyHost(t)
	t.Setenv("FAKE_NVML_LOST", "1")
	l := open(t, path)
	in, err := l.Read()
	if err == nil || !strings.Contains(err.Error(), "nvmlDeviceGetUUID for GPU 1: ERROR_GPU_IS_LOST (15): the GPU has fallen off the bus") {
		t.Errorf("%v", err)
	}
	if len(in.GPUs) != 4 || !strings.Contains(in.GPUs[1].Health.Problem(), "fallen off the bus") || in.GPUs[0].UUID == "" || in.GPUs[3].UUID == "" || len(in.Peers) != 6 {
		t.Errorf("%+v", in)
	}
}

func TestNoDriver(t *testing.T) {
	path := fake.NVML(t)
	fake.Open(t, path).Fail("nvmlInit_v2", 1, 9)
	if _, err := OpenNVML(NVMLConfig{Library: path}); err == nil || err.Error() != "nvmlInit_v2: ERROR_DRIVER_NOT_LOADED (9): no NVIDIA driver is loaded: run modprobe nvidia" {
		t.Errorf("%v", err)
	}
}

// TestOtherLibraries reads one library while another one is open.
func TestOtherLibraries(t *testing.T) {
	path := fake.NVML(t)
	other := fake.Copy(t, path)
	t.Setenv("FAKE_NVML_GPUS", "3")
	open(t, path)
	t.Setenv("FAKE_NVML_GPUS", "1")
	for path, gpus := range map[string]int{path: 3, other: 1} {
		if in, err := open(t, path).Read(); err != nil || len(in.GPUs) != gpus {
			t.Errorf("%d GPUs, want %d: %v", len(in.GPUs), gpus, err)
		}
	}
}

func TestClosed(t *testing.T) {
	l := open(t, fake.NVML(t))
	testkit.NoError(t, errors.Join(l.Close(), l.Close()))
	if _, err := l.Read(); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
	if err := l.WatchXids(t.Context(), nil); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
}

// TestCloseEndsWatch closes under a watcher's hands.
func TestCloseEndsWatch(t *testing.T) {
	path := fake.NVML(t)
	t.Setenv("FAKE_NVML_XID", "0:31")
	l := open(t, path)
	seen, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- l.WatchXids(context.Background(), func(int, uint64) { close(seen) }) }()
	<-seen
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
}

// TestManyAtOnce opens and closes concurrently: what the process has of the system does not grow.
func TestManyAtOnce(t *testing.T) {
	path := fake.NVML(t)
	c := fake.Open(t, path)
	testkit.NoError(t, testkit.Must(OpenNVML(NVMLConfig{Library: path})).Close())
	files, libraries := held(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				l, err := OpenNVML(NVMLConfig{Library: path})
				if err != nil {
					t.Error(err)
					return
				}
				if in, err := l.Read(); err != nil || len(in.GPUs) != 2 {
					t.Errorf("%+v, %v", in, err)
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if f, l := held(t); c.Live("inits") != 0 || f != files || l != libraries {
		t.Errorf("%d handles are alive; %d descriptors became %d, %d mappings of libraries %d", c.Live("inits"), files, f, libraries, l)
	}
}

// held counts this process's descriptors and its mappings of libraries.
func held(t *testing.T) (fds, libs int) {
	list := testkit.Must(os.ReadDir("/proc/self/fd"))
	maps := testkit.Must(os.ReadFile("/proc/self/maps"))
	return len(list), strings.Count(string(maps), ".so")
}
