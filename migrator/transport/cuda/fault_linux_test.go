package cuda

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// The code of an error after which the context works, and of one after which it does not.
const (
	transientCode = 2
	stickyCode    = 700
)

// transferCalls are the calls that a transfer makes.
var transferCalls = []string{
	"cuCtxSetCurrent", "cuDevicePrimaryCtxRetain", "cuModuleLoadData", "cuModuleGetFunction", "cuCtxGetStreamPriorityRange", "cuStreamCreateWithPriority",
	"cuEventCreate", "cuMemHostAlloc", "cuMemHostGetDevicePointer_v2", "cuMemAlloc_v2", "cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemRelease",
	"cuMemcpyHtoDAsync_v2", "cuLaunchKernel", "cuMemcpyBatchAsync_v2", "cuEventRecord", "cuEventQuery",
	"cuMemUnmap", "cuMemAddressFree", "cuMemFree_v2", "cuMemFreeHost", "cuModuleUnload", "cuEventDestroy_v2", "cuStreamDestroy_v2", "cuDevicePrimaryCtxRelease_v2",
}

// hostTransferCalls are the calls of a transfer through host memory, and of IPC pools.
var hostTransferCalls = []string{
	"cuDevicePrimaryCtxRetain", "cuMemAlloc_v2", "cuMemGetAddressRange_v2", "cuIpcGetMemHandle", "cuMemHostAlloc", "cuMemHostRegister_v2", "cuMemHostGetDevicePointer_v2",
	"cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuLaunchKernel", "cuEventRecord", "cuEventQuery",
	"cuMemHostUnregister", "cuMemFreeHost", "cuMemFree_v2", "cuDevicePrimaryCtxRelease_v2",
}

// closeCalls are calls whose errors may not be reported, and leave handles open: no
// caller is left to report to, or the end of the context releases the same.
var closeCalls = []string{"cuMemRelease", "cuMemUnmap", "cuMemAddressFree", "cuMemFree_v2", "cuMemFreeHost", "cuMemHostUnregister", "cuModuleUnload", "cuEventDestroy_v2", "cuStreamDestroy_v2", "cuDevicePrimaryCtxRelease_v2", "cuCtxSetCurrent"}

// hostTransfer is a whole transfer through host memory in one process, from making the pools to closing them.
type hostTransfer struct {
	t   *testing.T
	lib string
	// corrupt is set if a transfer reported success, and the target's blocks differ from the source's.
	corrupt error
}

// TestEveryCallFails makes each call of a transfer through host memory fail at each of its places, with a
// transient and a sticky code: an error names the call, no wrong block is reported as
// pulled, nothing is left open, and the next transfer succeeds. TestEveryStepFails does that for pulls.
func TestEveryCallFails(t *testing.T) {
	// It uses its own copy of the library, so that what is never released affects no
	// other test.
	s := &hostTransfer{t: t, lib: fake.Copy(t, fake.CUDA(t))}
	c := fake.Open(t, s.lib)
	if err := s.run(); err != nil || s.corrupt != nil {
		t.Fatalf("a transfer without failures: %v, %v", err, s.corrupt)
	}
	if n := c.Live(""); n != 0 {
		t.Fatalf("%d handles are left by a transfer without failures", n)
	}
	const places = 40 // of one call; later ones repeat
	for _, call := range hostTransferCalls {
		t.Run(call, func(t *testing.T) {
			for _, code := range []int{transientCode, stickyCode} {
				for nth := 1; nth <= places; nth++ {
					before, live := c.Calls(call), c.Live("")
					c.Fail(call, nth, code)
					err := s.run()
					reached := c.Calls(call)-before >= nth
					c.Clear()
					if !reached {
						if nth == 1 {
							t.Error("a transfer does not make the call")
						}
						break
					}
					name := fmt.Sprintf("call %d, code %d", nth, code)
					if s.corrupt != nil {
						t.Errorf("%s: %v", name, s.corrupt)
						s.corrupt = nil
					}
					last := slices.Contains(closeCalls, call)
					if err == nil && !last {
						t.Errorf("%s: no error", name)
					}
					if want := fmt.Sprintf("%s: CUDA_ERROR", call); err != nil && (!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), fmt.Sprintf("(%d)", code))) {
						t.Errorf("%s: %v", name, err)
					}
					if n := c.Live(""); n != live && !last {
						t.Errorf("%s: %d handles are left", name, n-live)
					}
					if last {
						return // what it leaves open would be counted again
					}
				}
			}
		})
	}
}

// TestReadOnly checks that the source's pool is mapped read-only, and writable, with a
// warning, if the driver does not support read-only mappings.
func TestReadOnly(t *testing.T) {
	c := newControl(t)
	pair := newPair(t, newGPU(t), small, small)
	said := &bytes.Buffer{}
	pair.Target.Transport.(*Transport).Logger = slog.New(slog.NewTextHandler(said, nil))
	l := transporttest.Start(t, pair)
	before := c.Calls("cuMemSetAccess")
	c.Fail("cuMemSetAccess", 1, 801)
	l.RequirePull(l.Open(), l.Plan(small.Blocks, 1))
	if n := c.Calls("cuMemSetAccess") - before; n != 2 || !strings.Contains(said.String(), "read-only mappings") {
		t.Errorf("%d mappings, %q", n, said)
	}
}

// TestContextIsReplaced fails the GPU during pulls: each of them fails, and the next ones
// run in a new context with the same pools.
func TestContextIsReplaced(t *testing.T) {
	c := newControl(t)
	l := transporttest.Start(t, newPair(t, newGPU(t), small, small))
	plan := l.Plan(small.Blocks, 1)
	for round := range 3 {
		var pullers []transport.Puller
		for range 3 {
			pullers = append(pullers, l.Open())
		}
		if _, err := pullers[0].Pull(t.Context(), plan); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		c.Fail("cuEventQuery", 1, 719)
		if _, err := pullers[1].Pull(t.Context(), plan); !cuda.Sticky(err) {
			t.Errorf("pull on a failing GPU: %v", err)
		}
		for i, p := range pullers {
			if _, err := p.Pull(t.Context(), plan); err == nil {
				t.Errorf("puller %d works in a context that was closed", i)
			}
			if err := p.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
		if n := c.Live("contexts"); n != 0 {
			t.Errorf("%d contexts are left", n)
		}
	}
	l.RequirePull(l.Open(), plan)
}

// TestSlowGPU closes and cancels pulls while the GPU is busy: they return when it is
// done, and not before.
func TestSlowGPU(t *testing.T) {
	c := newControl(t)
	l := transporttest.Start(t, newPair(t, newGPU(t), small, small))
	plan := l.Plan(small.Blocks, 1)
	for _, way := range []string{"cancel", "close"} {
		p := l.Open()
		before := c.Calls("cuLaunchKernel")
		c.Pause()
		ctx, cancel := context.WithCancel(t.Context())
		result, closed := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := p.Pull(ctx, plan)
			result <- err
		}()
		testkit.WaitFor(t, "the launch", func() bool { return c.Calls("cuLaunchKernel") > before })
		if way == "cancel" {
			cancel()
			closed <- nil
		} else {
			go func() { closed <- p.Close() }()
			testkit.WaitFor(t, "Close", func() bool { return p.(*puller).Err(context.Background()) != nil })
		}
		select {
		case err := <-result:
			t.Errorf("%s: the pull returned while the GPU was busy: %v", way, err)
			result <- err
		default:
		}
		c.Resume()
		if err := <-result; err == nil {
			t.Errorf("%s: the pull succeeded", way)
		}
		if err := <-closed; err != nil {
			t.Errorf("%s: %v", way, err)
		}
		l.Target.Fill(3)
		if want := slices.Clone(l.Target.Memory.Bytes); !bytes.Equal(l.Target.Read(), want) {
			t.Errorf("%s: the memory changed after the fence", way)
		}
		cancel()
	}
}

// TestHandles checks that handles from a peer are validated.
func TestHandles(t *testing.T) {
	good := Handle{Kind: VMM, Offset: 100, Size: 1000}
	good.ID[3], good.GPU[15], good.Name[63] = 1, 2, 3
	if h, err := ParseHandle(good.Append(nil), 900); err != nil || h != good {
		t.Errorf("%+v, %v", h, err)
	}
	for name, bad := range map[string]Handle{
		"no kind": {Offset: 0, Size: 1000}, "unknown kind": {Kind: 3, Size: 1000}, "no size": {Kind: IPC}, "before": {Kind: IPC, Offset: -1, Size: 1000},
		"behind": {Kind: IPC, Offset: 101, Size: 1000}, "small": {Kind: IPC, Size: 899}, "huge offset": {Kind: IPC, Offset: 1<<63 - 1, Size: 1000},
	} {
		if _, err := ParseHandle(bad.Append(nil), 900); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	for n := range handleSize + 2 {
		if _, err := ParseHandle(make([]byte, n), 1); err == nil {
			t.Errorf("%d bytes are accepted", n)
		}
	}
}

func FuzzParseHandle(f *testing.F) {
	f.Add(Handle{Kind: IPC, Size: 4096}.Append(nil), int64(4096))
	f.Fuzz(func(t *testing.T, b []byte, pool int64) {
		h, err := ParseHandle(b, pool)
		if err == nil && pool >= 0 && (h.Offset < 0 || h.Offset+pool > h.Size) {
			t.Errorf("%+v is accepted for a pool of %d bytes", h, pool)
		}
	})
}

// TestConfigs checks that invalid configurations are rejected.
func TestConfigs(t *testing.T) {
	g := newGPU(t)
	for name, c := range map[string]Config{
		"nothing": {}, "no pool": {Dir: "/tmp/x"},
		"relative": {Dir: "x", Pool: transporttest.Pool{}}, "long": {Dir: "/" + strings.Repeat("x", 80), Pool: transporttest.Pool{}},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	for _, c := range []GPUConfig{{}, {Driver: g.config.Driver, Ordinal: 99}, {Driver: g.config.Driver, Groups: 2000}} {
		if _, err := NewGPU(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	host := transporttest.HeapMemory(small)
	tr := testkit.Must(New(Config{Dir: transporttest.SocketDir(t), Pool: transporttest.Pool{M: host}}))
	if err := tr.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "shm") {
		t.Errorf("a pool in host memory: %v", err)
	}
	if _, err := tr.Export(transport.Grant{}); err == nil {
		t.Error("Export of a pool in host memory succeeded")
	}
}
