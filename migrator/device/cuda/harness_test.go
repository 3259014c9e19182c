package cuda

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/transport"
)

// harness has everything that a call may need.
type harness struct {
	driver     *Driver
	a, b       *Context
	stream     *Stream
	event      *Event
	early      *Event
	module     *Module
	kernel     Kernel
	memory     Pointer
	host       *HostMemory
	allocation *Allocation
	descriptor *os.File
	mapping    *Mapping
	own        []byte
}

const rigBytes = 1 << 16

func newHarness(t testing.TB, d *Driver) *harness {
	t.Helper()
	r := &harness{driver: d, own: make([]byte, rigBytes)}
	ok := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	var err error
	r.a, err = d.RetainContext(0)
	ok(err)
	r.b, err = d.RetainContext(1)
	ok(err)
	r.stream, err = r.a.NewLowPriorityStream()
	ok(err)
	r.early, err = r.a.NewEvent(Timed)
	ok(err)
	r.event, err = r.a.NewEvent(Timed)
	ok(err)
	ok(r.early.Record(r.stream))
	ok(r.event.Record(r.stream))
	ok(r.stream.Wait())
	r.module, err = r.a.LoadModule(transport.KernelPTX)
	ok(err)
	r.kernel, err = r.module.Kernel(transport.KernelSum)
	ok(err)
	r.memory, err = r.a.Alloc(rigBytes)
	ok(err)
	r.host, err = r.a.AllocHost(rigBytes)
	ok(err)
	r.allocation, err = r.a.CreateAllocation(rigBytes)
	ok(err)
	r.descriptor, err = r.allocation.Export()
	ok(err)
	r.mapping, err = r.allocation.Map(ReadWrite)
	ok(err)
	return r
}

// close returns the errors of all closes.
func (r *harness) close() error {
	return errors.Join(r.mapping.Close(), r.descriptor.Close(), r.allocation.Close(), r.host.Close(), r.a.Free(r.memory), r.module.Close(),
		r.event.Close(), r.early.Close(), r.stream.Close(), r.b.Close(), r.a.Close())
}

// uses makes each call at least once, as a caller does. A use leaves nothing open,
// whether it fails or not.
var uses = map[call]func(r *harness) error{
	cuDeviceGetCount:              func(r *harness) error { _, err := r.driver.Count(); return err },
	cuDeviceGet:                   useDevice,
	cuDeviceGetName:               useDevice,
	cuDeviceGetUUID:               useDevice,
	cuDeviceGetPCIBusID:           useDevice,
	cuDeviceTotalMem:              useDevice,
	cuDeviceGetAttribute:          useDevice,
	cuDeviceCanAccessPeer:         func(r *harness) error { _, err := r.driver.CanAccess(0, 1); return err },
	cuDevicePrimaryCtxRetain:      useContext,
	cuDevicePrimaryCtxRelease:     useContext,
	cuCtxSetCurrent:               func(r *harness) error { _, _, err := r.a.AllocationRange(r.memory); return err },
	cuCtxGetStreamPriorityRange:   useStream,
	cuMemAlloc:                    useMemory,
	cuMemFree:                     useMemory,
	cuMemGetAddressRange:          func(r *harness) error { _, _, err := r.a.AllocationRange(r.memory + 5); return err },
	cuMemHostAlloc:                useHost,
	cuMemFreeHost:                 useHost,
	cuMemHostGetDevicePointer:     useHost,
	cuMemHostRegister:             useRegistered,
	cuMemHostUnregister:           useRegistered,
	cuIpcGetMemHandle:             func(r *harness) error { _, err := r.a.IPCHandle(r.memory); return err },
	cuMemGetAllocationGranularity: useAllocation,
	cuMemCreate:                   useAllocation,
	cuMemRelease:                  useAllocation,
	cuMemExportToShareableHandle:  useAllocation,
	cuMemImportFromShareableHandle: func(r *harness) error {
		a, err := r.a.ImportAllocation(r.descriptor, r.allocation.Size())
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
	cuStreamSynchronize:           func(r *harness) error { return r.stream.Wait() },
	cuEventCreate:                 useEvent,
	cuEventDestroy:                useEvent,
	cuEventRecord:                 useEvent,
	cuEventSynchronize:            useEvent,
	cuEventQuery:                  useEvent,
	cuEventElapsedTime: func(r *harness) error {
		ms, err := r.event.Since(r.early)
		if ms < 0 {
			return fmt.Errorf("Since returned %v ms", ms)
		}
		return err
	},
	cuMemcpyDtoDAsync:    useCopies,
	cuMemcpyHtoDAsync:    useCopies,
	cuMemcpyDtoHAsync:    useCopies,
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
	cuIpcOpenMemHandle:   nil, // need another process: transport/cuda's TestAnotherProcess, measure's TestEachCallFails
	cuIpcCloseMemHandle:  nil,
}

func useDevice(r *harness) error {
	info, err := r.driver.Device(1)
	if err == nil && (info.Name != "Fake GPU 1" || info.PCI != "0000:20:00.0" || info.Major != 9 || info.Multiprocessors != 4 || !info.VMM || !info.DMABuf || info.Bytes != 1<<34 || info.UUID[15] != '1') {
		return fmt.Errorf("%+v", info)
	}
	return err
}

func useContext(r *harness) error {
	c, err := r.driver.RetainContext(0)
	if err != nil {
		return err
	}
	if err := c.Close(); err != nil {
		c.closed.Store(false)
		return errors.Join(err, c.Close())
	}
	return c.Close()
}

// closeAgain closes again what did not close the first time, so that nothing is left
// open.
func closeAgain(closed interface{ Store(bool) }, close func() error) error {
	err := close()
	if err != nil {
		closed.Store(false)
		err = errors.Join(err, close())
	}
	return errors.Join(err, close())
}

func useStream(r *harness) error {
	s, err := r.a.NewLowPriorityStream()
	if err != nil {
		return err
	}
	return closeAgain(&s.closed, s.Close)
}

func useMemory(r *harness) error {
	p, err := r.a.Alloc(4096)
	if err != nil {
		return err
	}
	if err := r.a.Free(p); err != nil {
		return errors.Join(err, r.a.Free(p))
	}
	return nil
}

func useHost(r *harness) error {
	h, err := r.a.AllocHost(4096)
	if err != nil {
		return err
	}
	h.Bytes()[4095], h.Uint32s()[0], h.Uint64s()[511] = 1, 2, 3
	return closeAgain(&h.closed, h.Close)
}

func useRegistered(r *harness) error {
	h, err := r.a.RegisterHost(r.own)
	if err != nil {
		return err
	}
	if h.Pointer() == 0 {
		return errors.New("no address")
	}
	return closeAgain(&h.closed, h.Close)
}

func useAllocation(r *harness) error {
	a, err := r.a.CreateAllocation(1)
	if err != nil {
		return err
	}
	f, err := a.Export()
	if err == nil {
		err = f.Close()
	}
	return errors.Join(err, closeAgain(&a.closed, a.Close))
}

func useMapping(r *harness) error {
	m, err := r.allocation.Map(ReadOnly)
	if err != nil {
		return err
	}
	err = m.Close() // and again what has not closed
	return errors.Join(err, m.Close(), m.Close())
}

func useDMABuf(r *harness) error {
	// Two bytes on two pages: the descriptor covers both.
	page := Pointer(os.Getpagesize())
	f, offset, err := r.a.DMABuf(r.memory+page-1, 2)
	if err != nil {
		return err
	}
	if offset != int64(page)-1 {
		err = fmt.Errorf("the range begins at offset %d of its pages", offset)
	}
	return errors.Join(err, f.Close())
}

func useEvent(r *harness) error {
	e, err := r.a.NewEvent(Untimed)
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
	return errors.Join(err, closeAgain(&e.closed, e.Close))
}

func useCopies(r *harness) error {
	half := Pointer(rigBytes / 2)
	for i := range r.host.Bytes()[:256] {
		r.host.Bytes()[i] = byte(i)
	}
	err := r.stream.CopyToDevice(r.memory, r.host, 0, 256)
	if err == nil {
		err = r.stream.Copy(r.memory+half, r.memory, 256)
	}
	if err == nil {
		err = r.stream.Copy(r.mapping.Pointer(), r.memory+half, 256)
	}
	if err == nil {
		err = r.stream.Fill(r.mapping.Pointer()+256, 7, 256)
	}
	if err == nil {
		err = r.stream.CopyToHost(r.host, 1024, r.mapping.Pointer(), 512)
	}
	if err := errors.Join(err, r.stream.Wait()); err != nil {
		return err
	}
	if got := r.host.Bytes()[1024:]; !slices.Equal(got[:256], r.host.Bytes()[:256]) || got[256] != 7 || got[511] != 7 {
		return errors.New("the copies differ")
	}
	return nil
}

func useBatch(r *harness) error {
	for i := range r.host.Bytes()[:1024] {
		r.host.Bytes()[i] = byte(i / 4)
	}
	err := r.stream.CopyToDevice(r.memory, r.host, 0, 1024)
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
		err = r.stream.CopyToHost(r.host, 2048, r.memory+8192, 1024)
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

func useModule(r *harness) error {
	m, err := r.a.LoadModule(transport.KernelPTX)
	if err != nil {
		return err
	}
	_, err = m.Kernel(transport.KernelCopy)
	return errors.Join(err, closeAgain(&m.closed, m.Close))
}

func useKernel(r *harness) error {
	const bytes = 1000
	for i := range r.host.Bytes()[:bytes] {
		r.host.Bytes()[i] = byte(i * 7)
	}
	w := r.host.Uint64s()[512:]
	w[0], w[1], w[2], w[3], w[4] = uint64(r.memory), 0, 0, 0, bytes
	w[5] = 0 // one entry: source block 0
	w[6] = 0
	err := errors.Join(r.stream.CopyToDevice(r.memory, r.host, 0, bytes), r.stream.CopyToDevice(r.memory+8192, r.host, 4096, 56))
	if err == nil {
		err = r.kernel.Launch(r.stream, 8, 64, []uint64{uint64(r.memory + 8192), 1, uint64(r.memory+8192) + 40, 1, 1008, 1, uint64(r.host.Pointer()) + 4096 + 48})
	}
	if err := errors.Join(err, r.stream.Wait()); err != nil {
		return err
	}
	if want := transport.RawSum(r.host.Bytes()[:bytes]); w[6] != want {
		return fmt.Errorf("checksum %#x, want %#x", w[6], want)
	}
	return nil
}
