package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/cuda/kernel"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
)

func open(t testing.TB) (*Driver, *fake.Control) {
	t.Helper()
	path := fake.CUDA(t)
	c := fake.Open(t, path)
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := c.Live(""); n != 0 {
		t.Fatalf("%d handles are alive before the test", n)
	}
	return d, c
}

// TestShimHasTheSameCalls holds the Go list against the C list.
func TestShimHasTheSameCalls(t *testing.T) {
	open(t)
	for c := range callCount {
		if symbol(c) != calls[c] {
			t.Errorf("call %d is %s here and %s in the shim", c, calls[c], symbol(c))
		}
	}
	if symbol(callCount) != "" {
		t.Errorf("the shim has %s too", symbol(callCount))
	}
}

func TestNoLibrary(t *testing.T) {
	_, err := Open(filepath.Join(t.TempDir(), "libcuda.so.1"))
	if !errors.Is(err, device.ErrNoLibrary) && !errors.Is(err, device.ErrNoCgo) {
		t.Errorf("%v", err)
	}
	if _, err := Open("libc.so.6"); err != nil {
		var missing *device.SymbolError
		if !errors.As(err, &missing) && !errors.Is(err, device.ErrNoCgo) || missing != nil && missing.Symbol != "cuInit" {
			t.Errorf("a library that is no driver: %v", err)
		}
	} else {
		t.Error("libc is taken for a driver")
	}
}

// TestSymbolIsMissing opens drivers that lack one function each.
func TestSymbolIsMissing(t *testing.T) {
	_, _ = open(t)
	whole, err := os.ReadFile(fake.CUDA(t))
	if err != nil {
		t.Fatal(err)
	}
	for c := range callCount {
		t.Run(calls[c], func(t *testing.T) {
			name := calls[c]
			without := bytes.ReplaceAll(whole, []byte("\x00"+name+"\x00"), []byte("\x00_"+name[1:]+"\x00"))
			if bytes.Equal(without, whole) {
				t.Fatal("the symbol is not found in the library")
			}
			path := filepath.Join(t.TempDir(), "libcuda.so.1")
			if err := os.WriteFile(path, without, 0o755); err != nil {
				t.Fatal(err)
			}
			d, err := Open(path)
			var missing *device.SymbolError
			switch {
			case optional[c]:
				if err != nil {
					t.Errorf("an optional symbol: %v", err)
				} else if d.functions.has(c) {
					t.Error("it is there")
				}
			case !errors.As(err, &missing) || missing.Symbol != name || missing.Library != path:
				t.Errorf("%v", err)
			}
		})
	}
}

// rig is all that a call may need.
type rig struct {
	driver     *Driver
	a, b       *Context
	stream     *Stream
	event      *Event
	early      *Event
	module     *Module
	kernel     Kernel
	memory     Pointer
	host       *Host
	allocation *Allocation
	descriptor *os.File
	mapping    *Mapping
	own        []byte
}

const rigBytes = 1 << 16

func newRig(t testing.TB, d *Driver) *rig {
	t.Helper()
	r := &rig{driver: d, own: make([]byte, rigBytes)}
	ok := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	var err error
	r.a, err = d.Retain(0)
	ok(err)
	r.b, err = d.Retain(1)
	ok(err)
	r.stream, err = r.a.LowStream()
	ok(err)
	r.early, err = r.a.Event(Timed)
	ok(err)
	r.event, err = r.a.Event(Timed)
	ok(err)
	ok(r.early.Record(r.stream))
	ok(r.event.Record(r.stream))
	ok(r.stream.Wait())
	r.module, err = r.a.Load(kernel.PTX)
	ok(err)
	r.kernel, err = r.module.Kernel(kernel.Sum)
	ok(err)
	r.memory, err = r.a.Alloc(rigBytes)
	ok(err)
	r.host, err = r.a.HostAlloc(rigBytes)
	ok(err)
	r.allocation, err = r.a.Create(rigBytes)
	ok(err)
	r.descriptor, err = r.allocation.Export()
	ok(err)
	r.mapping, err = r.allocation.Map(ReadWrite)
	ok(err)
	return r
}

// close returns the errors of all closings.
func (r *rig) close() error {
	return errors.Join(r.mapping.Close(), r.descriptor.Close(), r.allocation.Close(), r.host.Close(), r.a.Free(r.memory), r.module.Close(),
		r.event.Close(), r.early.Close(), r.stream.Close(), r.b.Close(), r.a.Close())
}

// uses makes each call at least once, by the way in which a caller would. A use
// leaves nothing behind, whether it fails or not.
var uses = map[call]func(r *rig) error{
	cuDeviceGetCount:              func(r *rig) error { _, err := r.driver.Count(); return err },
	cuDeviceGet:                   useDevice,
	cuDeviceGetName:               useDevice,
	cuDeviceGetUUID:               useDevice,
	cuDeviceGetPCIBusID:           useDevice,
	cuDeviceTotalMem:              useDevice,
	cuDeviceGetAttribute:          useDevice,
	cuDeviceCanAccessPeer:         func(r *rig) error { _, err := r.driver.CanAccess(0, 1); return err },
	cuDevicePrimaryCtxRetain:      useContext,
	cuDevicePrimaryCtxRelease:     useContext,
	cuCtxSetCurrent:               func(r *rig) error { _, _, err := r.a.Range(r.memory); return err },
	cuCtxGetStreamPriorityRange:   useStream,
	cuCtxEnablePeerAccess:         func(r *rig) error { return r.a.EnablePeer(r.b) },
	cuMemAlloc:                    useMemory,
	cuMemFree:                     useMemory,
	cuMemGetAddressRange:          func(r *rig) error { _, _, err := r.a.Range(r.memory + 5); return err },
	cuMemHostAlloc:                useHost,
	cuMemFreeHost:                 useHost,
	cuMemHostGetDevicePointer:     useHost,
	cuMemHostRegister:             useRegistered,
	cuMemHostUnregister:           useRegistered,
	cuIpcGetMemHandle:             func(r *rig) error { _, err := r.a.IPC(r.memory); return err },
	cuMemRetainAllocationHandle:   useAllocationOf,
	cuMemGetAllocationGranularity: useAllocation,
	cuMemCreate:                   useAllocation,
	cuMemRelease:                  useAllocation,
	cuMemExportToShareableHandle:  useAllocation,
	cuMemImportFromShareableHandle: func(r *rig) error {
		a, err := r.a.Import(r.descriptor, r.allocation.Size())
		if err != nil {
			return err
		}
		return a.Close()
	},
	cuMemAddressReserve:           useMapping,
	cuMemAddressFree:              useMapping,
	cuMemMap:                      useMapping,
	cuMemUnmap:                    useMapping,
	cuMemSetAccess:                useMapping,
	cuMemGetHandleForAddressRange: useDMABuf,
	cuStreamCreateWithPriority:    useStream,
	cuStreamDestroy:               useStream,
	cuStreamSynchronize:           func(r *rig) error { return r.stream.Wait() },
	cuStreamQuery: func(r *rig) error {
		idle, err := r.stream.Idle()
		if err == nil && !idle {
			return errors.New("an idle stream is at work")
		}
		return err
	},
	cuEventCreate:      useEvent,
	cuEventDestroy:     useEvent,
	cuEventRecord:      useEvent,
	cuEventSynchronize: useEvent,
	cuEventQuery:       useEvent,
	cuEventElapsedTime: func(r *rig) error {
		ms, err := r.event.Since(r.early)
		if ms < 0 {
			return fmt.Errorf("%v ms have passed", ms)
		}
		return err
	},
	cuMemcpyDtoDAsync:    useCopies,
	cuMemcpyHtoDAsync:    useCopies,
	cuMemcpyDtoHAsync:    useCopies,
	cuMemcpyPeerAsync:    useCopies,
	cuMemsetD8Async:      useCopies,
	cuMemcpyBatchAsyncV2: useBatch,
	cuMemcpyBatchAsync:   nil, // where the newer one is not: TestOldBatch
	cuModuleLoadData:     useModule,
	cuModuleUnload:       useModule,
	cuModuleGetFunction:  useModule,
	cuLaunchKernel:       useKernel,
	cuInit:               nil, // TestInitFails
	cuDriverGetVersion:   nil,
	cuGetErrorName:       nil, // by every error
	cuIpcOpenMemHandle:   nil, // need another process: TestIPC
	cuIpcCloseMemHandle:  nil,
}

func useDevice(r *rig) error {
	info, err := r.driver.Device(1)
	if err == nil && (info.Name != "Fake GPU 1" || info.PCI != "0000:20:00.0" || info.Major != 9 || info.Multiprocessors != 4 || !info.VMM || !info.DMABuf || info.Bytes != 1<<34 || info.UUID[15] != '1') {
		return fmt.Errorf("%+v", info)
	}
	if err != nil {
		return err
	}
	_, err = r.driver.Attribute(0, attrMajor)
	return err
}

func useContext(r *rig) error {
	c, err := r.driver.Retain(0)
	if err != nil {
		return err
	}
	if err := c.Close(); err != nil {
		c.closed.Store(false)
		return errors.Join(err, c.Close())
	}
	return c.Close()
}

// twice closes what did not close the first time, so that nothing is left.
func twice(closed interface{ Store(bool) }, close func() error) error {
	err := close()
	if err != nil {
		closed.Store(false)
		err = errors.Join(err, close())
	}
	return errors.Join(err, close())
}

func useStream(r *rig) error {
	s, err := r.a.LowStream()
	if err != nil {
		return err
	}
	return twice(&s.closed, s.Close)
}

func useMemory(r *rig) error {
	p, err := r.a.Alloc(4096)
	if err != nil {
		return err
	}
	if err := r.a.Free(p); err != nil {
		return errors.Join(err, r.a.Free(p))
	}
	return nil
}

func useHost(r *rig) error {
	h, err := r.a.HostAlloc(4096)
	if err != nil {
		return err
	}
	h.Bytes()[4095], h.Uint32s()[0], h.Uint64s()[511] = 1, 2, 3
	return twice(&h.closed, h.Close)
}

func useRegistered(r *rig) error {
	h, err := r.a.Register(r.own)
	if err != nil {
		return err
	}
	if h.Pointer() == 0 {
		return errors.New("no address")
	}
	return twice(&h.closed, h.Close)
}

func useAllocation(r *rig) error {
	a, err := r.a.Create(1)
	if err != nil {
		return err
	}
	f, err := a.Export()
	if err == nil {
		err = f.Close()
	}
	return errors.Join(err, twice(&a.closed, a.Close))
}

func useAllocationOf(r *rig) error {
	a, err := r.a.AllocationOf(r.mapping.Pointer(), r.mapping.Size())
	if err != nil {
		return err
	}
	return twice(&a.closed, a.Close)
}

func useMapping(r *rig) error {
	m, err := r.allocation.Map(ReadOnly)
	if err != nil {
		return err
	}
	err = m.Close() // and again what has not closed
	return errors.Join(err, m.Close(), m.Close())
}

func useDMABuf(r *rig) error {
	// Two bytes of two pages: the descriptor is of both.
	page := Pointer(os.Getpagesize())
	f, offset, err := r.a.DMABuf(r.memory+page-1, 2)
	if err != nil {
		return err
	}
	if offset != int64(page)-1 {
		err = fmt.Errorf("the range begins at %d of its pages", offset)
	}
	return errors.Join(err, f.Close())
}

func useEvent(r *rig) error {
	e, err := r.a.Event(Untimed)
	if err != nil {
		return err
	}
	err = e.Record(r.stream)
	if err == nil {
		err = e.Wait()
	}
	if err == nil {
		var done bool
		if done, err = e.Done(); err == nil && !done {
			err = errors.New("an event that was waited for has not happened")
		}
	}
	return errors.Join(err, twice(&e.closed, e.Close))
}

func useCopies(r *rig) error {
	half := Pointer(rigBytes / 2)
	for i := range r.host.Bytes()[:256] {
		r.host.Bytes()[i] = byte(i)
	}
	err := r.stream.ToDevice(r.memory, r.host, 0, 256)
	if err == nil {
		err = r.stream.Copy(r.memory+half, r.memory, 256)
	}
	if err == nil {
		err = r.stream.CopyPeer(r.mapping.Pointer(), r.a, r.memory+half, r.a, 256)
	}
	if err == nil {
		err = r.stream.Set(r.mapping.Pointer()+256, 7, 256)
	}
	if err == nil {
		err = r.stream.ToHost(r.host, 1024, r.mapping.Pointer(), 512)
	}
	if err := errors.Join(err, r.stream.Wait()); err != nil {
		return err
	}
	if got := r.host.Bytes()[1024:]; !slices.Equal(got[:256], r.host.Bytes()[:256]) || got[256] != 7 || got[511] != 7 {
		return errors.New("the copies differ")
	}
	return nil
}

func useBatch(r *rig) error {
	for i := range r.host.Bytes()[:1024] {
		r.host.Bytes()[i] = byte(i / 4)
	}
	err := r.stream.ToDevice(r.memory, r.host, 0, 1024)
	var b Batch
	if err == nil {
		err = r.stream.CopyBatch(&b, 4, func(i int) (Pointer, Pointer, int64) {
			return r.memory + 8192 + Pointer(i)*256, r.memory + Pointer(3-i)*256, 256
		})
	}
	if err == nil {
		err = r.stream.CopyBatch(&b, 0, nil)
	}
	if err == nil {
		err = r.stream.ToHost(r.host, 2048, r.memory+8192, 1024)
	}
	if err := errors.Join(err, r.stream.Wait()); err != nil {
		return err
	}
	for i := range 4 {
		if !slices.Equal(r.host.Bytes()[2048+256*i:][:256], r.host.Bytes()[256*(3-i):][:256]) {
			return fmt.Errorf("piece %d differs", i)
		}
	}
	return nil
}

func useModule(r *rig) error {
	m, err := r.a.Load(kernel.PTX)
	if err != nil {
		return err
	}
	_, err = m.Kernel(kernel.Copy)
	return errors.Join(err, twice(&m.closed, m.Close))
}

func useKernel(r *rig) error {
	const bytes = 1000
	for i := range r.host.Bytes()[:bytes] {
		r.host.Bytes()[i] = byte(i * 7)
	}
	w := r.host.Uint64s()[512:]
	w[0], w[1], w[2], w[3], w[4] = uint64(r.memory), 0, 0, 0, bytes
	w[5] = 0 // one entry: source block 0
	w[6] = 0
	err := errors.Join(r.stream.ToDevice(r.memory, r.host, 0, bytes), r.stream.ToDevice(r.memory+8192, r.host, 4096, 56))
	if err == nil {
		err = r.kernel.Launch(r.stream, 8, 64, []uint64{uint64(r.memory + 8192), 1, uint64(r.memory+8192) + 40, 1, 1008, 1, uint64(r.host.Pointer()) + 4096 + 48})
	}
	if err := errors.Join(err, r.stream.Wait()); err != nil {
		return err
	}
	if want := kernel.Raw(r.host.Bytes()[:bytes]); w[6] != want {
		return fmt.Errorf("the sum is %#x, want %#x", w[6], want)
	}
	return nil
}

// TestEveryCallFails makes each call once well and once badly: the error names
// the call, the code and its name, and nothing is left behind.
func TestEveryCallFails(t *testing.T) {
	d, control := open(t)
	if len(uses) != int(callCount) {
		t.Fatalf("%d of %d calls have a use", len(uses), callCount)
	}
	r := newRig(t, d)
	for c := range callCount {
		use := uses[c]
		if use == nil {
			continue
		}
		t.Run(calls[c], func(t *testing.T) {
			before, live := control.Calls(calls[c]), control.Live("")
			if err := use(r); err != nil {
				t.Fatalf("a good call: %v", err)
			}
			if control.Calls(calls[c]) == before {
				t.Fatal("the use does not make the call")
			}
			control.Fail(calls[c], 1, 801)
			err := use(r)
			var failed *Error
			if !errors.As(err, &failed) || failed.Call != calls[c] || failed.Code != 801 || failed.Name != "CUDA_ERROR_NOT_SUPPORTED" {
				t.Errorf("%v", err)
			} else if text := err.Error(); !strings.Contains(text, calls[c]+": CUDA_ERROR_NOT_SUPPORTED (801)") {
				t.Errorf("%q does not say what has failed", text)
			}
			if n := control.Live(""); n != live {
				t.Errorf("%d handles are alive, %d were before", n, live)
			}
		})
	}
	if err := r.close(); err != nil {
		t.Error(err)
	}
	if n := control.Live(""); n != 0 {
		t.Errorf("%d handles are left", n)
	}
}

func TestInitFails(t *testing.T) {
	_, control := open(t)
	for _, name := range []string{"cuInit", "cuDriverGetVersion"} {
		control.Fail(name, 1, 12345)
		_, err := Open(fake.CUDA(t))
		var failed *Error
		if !errors.As(err, &failed) || failed.Call != name || failed.Code != 12345 || failed.Name != "unknown code" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRetainFails has a device that does not say what it can do.
func TestRetainFails(t *testing.T) {
	d, control := open(t)
	control.Fail("cuDeviceGetAttribute", 1, 801)
	if _, err := d.Retain(0); !Is(err, NotSupported) || !strings.Contains(err.Error(), "cuDeviceGetAttribute") {
		t.Errorf("%v", err)
	}
	control.Fail("cuDeviceGetAttribute", 1, 1) // an attribute that the driver does not know
	c, err := d.Retain(0)
	if err != nil {
		t.Fatal(err)
	}
	if a, err := c.Create(1); err != nil {
		t.Error(err)
	} else if err := a.Close(); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if n := control.Live(""); n != 0 {
		t.Errorf("%d handles are alive", n)
	}
}

// TestStickyCodes holds the codes after which a context is of no use against those of
// the fake.
func TestStickyCodes(t *testing.T) {
	d, control := open(t)
	for code := 1; code < 1000; code++ {
		c, err := d.Retain(0)
		if err != nil {
			t.Fatal(err)
		}
		control.Fail("cuMemGetAddressRange_v2", 1, code)
		if _, _, err := c.Range(1); !Is(err, Code(code)) {
			t.Errorf("code %d: %v", code, err)
		}
		_, _, err = c.Range(1) // no memory: InvalidValue, where the context lives
		if got := !Is(err, InvalidValue); got != Code(code).Sticky() && code != int(InvalidValue) {
			t.Errorf("code %d: sticky is %v, and then %v", code, Code(code).Sticky(), err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestSticky shows that an error of the device stays until its context is made
// anew, and that a context which ends takes all with it.
func TestSticky(t *testing.T) {
	d, control := open(t)
	r := newRig(t, d)
	control.Fail("cuLaunchKernel", 1, 700)
	if err := useKernel(r); !Sticky(err) {
		t.Fatalf("an illegal address is not sticky: %v", err)
	}
	if _, err := r.a.Alloc(4096); !Sticky(err) {
		t.Errorf("a call in a broken context: %v", err)
	}
	if _, err := r.b.Alloc(4096); err != nil {
		t.Errorf("a call in another context: %v", err)
	}
	// What is of the process, and not of the context, is closed as ever.
	if err := errors.Join(r.mapping.Close(), r.descriptor.Close(), r.allocation.Close()); err != nil {
		t.Error(err)
	}
	if err := errors.Join(r.b.Close(), r.a.Close()); err != nil {
		t.Error(err)
	}
	if n := control.Live(""); n != 0 {
		t.Errorf("%d handles outlive their contexts", n)
	}
	fresh := newRig(t, d)
	if err := useKernel(fresh); err != nil {
		t.Errorf("a fresh context: %v", err)
	}
	if err := fresh.close(); err != nil {
		t.Error(err)
	}
}

// TestOldBatch uses a driver of before the batch call was changed, and one that
// has none.
func TestOldBatch(t *testing.T) {
	_, _ = open(t)
	whole, err := os.ReadFile(fake.CUDA(t))
	if err != nil {
		t.Fatal(err)
	}
	old := bytes.ReplaceAll(whole, []byte("\x00cuMemcpyBatchAsync_v2\x00"), []byte("\x00_uMemcpyBatchAsync_v2\x00"))
	none := bytes.ReplaceAll(old, []byte("\x00cuMemcpyBatchAsync\x00"), []byte("\x00_uMemcpyBatchAsync\x00"))
	for name, c := range map[string]struct {
		lib  []byte
		want bool
	}{"old": {old, true}, "none": {none, false}} {
		path := filepath.Join(t.TempDir(), "libcuda.so.1")
		if err := os.WriteFile(path, c.lib, 0o755); err != nil {
			t.Fatal(err)
		}
		control := fake.Open(t, path)
		d, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if d.Batches() != c.want {
			t.Errorf("%s: Batches is %v", name, d.Batches())
		}
		if !c.want {
			continue
		}
		r := newRig(t, d)
		if err := useBatch(r); err != nil {
			t.Error(err)
		}
		if control.Calls("cuMemcpyBatchAsync") != 1 {
			t.Error("the old call is not made")
		}
		control.Fail("cuMemcpyBatchAsync", 1, 1)
		if err := useBatch(r); err == nil || !strings.Contains(err.Error(), "cuMemcpyBatchAsync: CUDA_ERROR_INVALID_VALUE (1)") {
			t.Errorf("%v", err)
		}
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}
}

// TestCycles opens and closes everything 10,000 times.
func TestCycles(t *testing.T) {
	cycles := 10_000
	d, control := open(t)
	for range cycles {
		c, err := d.Retain(0)
		if err != nil {
			t.Fatal(err)
		}
		s, err := c.LowStream()
		if err != nil {
			t.Fatal(err)
		}
		e, err := c.Event(Untimed)
		if err != nil {
			t.Fatal(err)
		}
		a, err := c.Create(1)
		if err != nil {
			t.Fatal(err)
		}
		f, err := a.Export()
		if err != nil {
			t.Fatal(err)
		}
		b, err := c.Import(f, a.Size())
		if err != nil {
			t.Fatal(err)
		}
		m, err := b.Map(ReadWrite)
		if err != nil {
			t.Fatal(err)
		}
		p, err := c.Alloc(4096)
		if err != nil {
			t.Fatal(err)
		}
		h, err := c.HostAlloc(4096)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(h.Close(), c.Free(p), m.Close(), b.Close(), f.Close(), a.Close(), e.Close(), s.Close(), c.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if n := control.Live(""); n != 0 {
		t.Errorf("%d handles are left after %d cycles", n, cycles)
	}
	if fds, err := os.ReadDir("/proc/self/fd"); err == nil && len(fds) > 100 {
		t.Errorf("%d files are open", len(fds))
	}
}

func TestCallsDoNotAllocate(t *testing.T) {
	d, _ := open(t)
	r := newRig(t, d)
	defer r.close()
	args := []uint64{uint64(r.memory), 0, uint64(r.memory), 0, 16, 1, uint64(r.memory)}
	if n := testing.AllocsPerRun(100, func() {
		if err := errors.Join(r.stream.Copy(r.memory, r.memory+64, 64), r.event.Record(r.stream), r.kernel.Launch(r.stream, 8, 64, args)); err != nil {
			t.Error(err)
		}
		if _, err := r.event.Done(); err != nil {
			t.Error(err)
		}
	}); n > 0 && !raced {
		t.Errorf("four calls allocate %.0f times", n)
	}
	if err := r.stream.Wait(); err != nil {
		t.Error(err)
	}
}

// BenchmarkCall is the way into the driver and back.
func BenchmarkCall(b *testing.B) {
	d, _ := open(b)
	r := newRig(b, d)
	defer r.close()
	b.ReportAllocs()
	for b.Loop() {
		r.event.Done()
	}
}
