package cuda

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// driverPath returns the driver that the tests run on: the fake, or with
// CASCADE_TEST_CUDA=1 the machine's own.
func driverPath(t testing.TB) string {
	if os.Getenv("CASCADE_TEST_CUDA") != "" {
		return cuda.Soname
	}
	return fake.CUDA(t)
}

// newControl returns the fake, or skips the test.
func newControl(t testing.TB) *fake.Control {
	t.Helper()
	if os.Getenv("CASCADE_TEST_CUDA") != "" {
		testkit.Skip(t, testkit.Unavailable{What: "a real driver cannot be made to fail", Remedy: "unset CASCADE_TEST_CUDA"})
	}
	return fake.Open(t, driverPath(t))
}

func newGPU(t testing.TB) *GPU { return newGPUAt(t, 0) }

// newGPUAt returns the GPU of that ordinal, or skips the test if there are not as many.
func newGPUAt(t testing.TB, ordinal int) *GPU {
	t.Helper()
	d, err := cuda.Open(driverPath(t))
	fake.RequireOpened(t, err)
	if n, err := d.Count(); err != nil || ordinal >= n {
		testkit.Skip(t, testkit.Unavailable{What: fmt.Sprintf("there is no GPU %d: %d, %v", ordinal, n, err), Remedy: "run it on a machine with more GPUs, or unset CASCADE_TEST_CUDA"})
	}
	g := testkit.Must(NewGPU(GPUConfig{Driver: d, Ordinal: ordinal}))
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// mirror keeps the test's copy of a device's memory.
type mirror struct {
	t testing.TB
	m *Memory
	b []byte
}

func (m mirror) Store() {
	m.t.Helper()
	if n, err := m.m.WriteAt(m.b, 0); err != nil || n != len(m.b) {
		m.t.Errorf("%d bytes were written: %v", n, err)
	}
}

func (m mirror) Load() {
	m.t.Helper()
	if n, err := m.m.ReadAt(m.b, 0); err != nil || n != len(m.b) {
		m.t.Errorf("%d bytes were read: %v", n, err)
	}
}

// newPool returns a pool on a GPU with a mirror.
func newPool(t testing.TB, g *GPU, kind Kind, l transport.Layout) (*transport.Memory, mirror) {
	t.Helper()
	m := testkit.Must(Allocate(g, kind, l))
	m.Bytes = make([]byte, l.MinSize())
	return m, mirror{t, m.Device.(*Memory), m.Bytes}
}

func newEnd(t testing.TB, g *GPU, dir string, l transport.Layout) transporttest.End {
	t.Helper()
	m, mirror := newPool(t, g, VMM, l)
	tr := testkit.Must(New(Config{Dir: dir, Pool: transporttest.Pool{M: m}}))
	return transporttest.End{Transport: tr, Memory: m, Mirror: mirror, Unbound: true}
}

// newPairFunc returns a function that makes pairs of ends on one GPU, whose context
// outlives the tests: what a GPU keeps is not a leak of a transport.
func newPairFunc(t testing.TB) func(t *testing.T, source, target transport.Layout) transporttest.Pair {
	g := newWarmGPU(t, 0)
	return func(t *testing.T, source, target transport.Layout) transporttest.Pair {
		return newPair(t, g, source, target)
	}
}

// newPair returns two ends on one GPU.
func newPair(t testing.TB, g *GPU, source, target transport.Layout) transporttest.Pair {
	t.Helper()
	dir := transporttest.SocketDir(t)
	return transporttest.Pair{Source: newEnd(t, g, dir, source), Target: newEnd(t, g, dir, target)}
}

// newWarmGPU returns a GPU after warmUp.
func newWarmGPU(t testing.TB, ordinal int) *GPU {
	g := newGPUAt(t, ordinal)
	warmUp(t, g)
	return g
}

// warmUp makes a GPU allocate everything that it keeps.
func warmUp(t testing.TB, g *GPU) {
	t.Helper()
	pool, _ := newPool(t, g, VMM, small)
	defer pool.Close()
	if err := g.withContext(nil, func(h *gpuContext) error {
		var lanes []*copyStream
		for range maxIdleStreams {
			l, err := h.acquireStream()
			if err != nil {
				return err
			}
			lanes = append(lanes, l)
			if err := l.reservePacked(1); err != nil {
				return err
			}
		}
		for _, l := range lanes {
			h.releaseStream(l)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

var small = transport.Layout{Blocks: 64, Regions: []transport.Region{{Stride: 4096, Bytes: 4096}, {Offset: 64 * 4096, Stride: 1024, Bytes: 1000}}}

func TestConformance(t *testing.T) { transporttest.Run(t, newPairFunc(t)) }

// TestConformanceOfPeers runs the suite from one GPU to another.
func TestConformanceOfPeers(t *testing.T) {
	here, there := newWarmGPU(t, 0), newWarmGPU(t, 1)
	if can, err := here.config.Driver.CanAccess(0, 1); err != nil || !can {
		testkit.Skip(t, testkit.Unavailable{What: fmt.Sprintf("GPU 0 has no peer access to GPU 1: %v", err), Remedy: "run it on a machine with NVLink, or unset CASCADE_TEST_CUDA"})
	}
	transporttest.RunShort(t, func(t *testing.T, source, target transport.Layout) transporttest.Pair {
		dir := transporttest.SocketDir(t)
		return transporttest.Pair{Source: newEnd(t, there, dir, source), Target: newEnd(t, here, dir, target)}
	})
}

// TestNoPeerAccess covers GPUs that cannot reach each other, and one that this process
// does not see.
func TestNoPeerAccess(t *testing.T) {
	c := newControl(t)
	dir := transporttest.SocketDir(t)
	l := transporttest.Start(t, transporttest.Pair{Source: newEnd(t, newGPUAt(t, 1), dir, small), Target: newEnd(t, newGPU(t), dir, small)})
	c.Set("fake_no_peer", 1)
	if _, err := l.OpenOffer(transporttest.Receiver, l.Export(l.Grant())); err == nil || !strings.Contains(err.Error(), "gpu 0 has no peer access to gpu 1; use tcp") {
		t.Errorf("%v", err)
	}
	c.Set("fake_no_peer", 0)
	if err := l.Target.Memory.Device.(*Memory).gpu.checkPeerAccess([16]byte{1}); err == nil || !strings.Contains(err.Error(), "not visible to this process; use tcp") {
		t.Errorf("%v", err)
	}
	l.Open()
}

func TestAllocations(t *testing.T) { transporttest.RunAllocations(t, newPairFunc(t)) }

// TestSums compares the GPU's checksums with those of the processor.
func TestSums(t *testing.T) {
	g := newGPU(t)
	for _, kind := range []Kind{IPC, VMM} {
		m, mirror := newPool(t, g, kind, small)
		defer m.Close()
		transporttest.End{Memory: m, Mirror: mirror}.Fill(1)
		blocks := []uint32{5, 0, 63, 5}
		got := testkit.Must(m.Device.Sums([]uint32{9}, m.Layout, blocks))
		if want := m.Sums([]uint32{9}, blocks); !slices.Equal(got, want) {
			t.Errorf("kind %d: %x, want %x", kind, got, want)
		}
		end := m.Device.(*Memory).handle.Size - m.Device.(*Memory).handle.Offset
		for _, at := range []int64{-1, end, 1<<63 - 1} {
			if n, err := m.Device.(*Memory).WriteAt([]byte{1}, at); err == nil || n != 0 {
				t.Errorf("%d bytes were written at %d", n, at)
			}
		}
		bare := &transport.Memory{Layout: m.Layout, Device: m.Device}
		if sums, err := transport.ChecksumBlocks(transporttest.Pool{M: bare}, blocks); err != nil || !slices.Equal(sums, got[1:]) {
			t.Errorf("%x, %v", sums, err)
		}
		if _, err := transport.ChecksumBlocks(transporttest.Pool{M: bare}, []uint32{64}); err == nil {
			t.Error("ChecksumBlocks of a block out of range succeeded")
		}
		if _, err := transport.HoldHostMemory(transporttest.Pool{M: bare}); err == nil {
			t.Error("HoldHostMemory of device memory succeeded")
		}
	}
}

// TestMain also runs the engine and its source in another process, with a pool of the kind
// and on the library of the argument. The extra text is the handle of its pool.
func TestMain(m *testing.M) {
	transporttest.RunSource(func(argument string) (transporttest.End, string, error) {
		t := &testing.T{}
		f := strings.Split(argument, ":")
		d, err := cuda.Open(f[1])
		if err != nil {
			return transporttest.End{}, "", err
		}
		g, err := NewGPU(GPUConfig{Driver: d})
		if err != nil {
			return transporttest.End{}, "", err
		}
		m, mirror := newPool(t, g, map[string]Kind{"ipc": IPC, "vmm": VMM}[f[0]], small)
		tr, err := New(Config{Dir: f[2], Pool: transporttest.Pool{M: m}})
		e := transporttest.End{Transport: tr, Memory: m, Mirror: mirror}
		e.Fill(1)
		return e, hex.EncodeToString(mirror.m.handle.Append(nil)), err
	})
	os.Exit(m.Run())
}

// TestAnotherProcess pulls from a pool of another process, by IPC and by descriptor,
// until that process is killed.
func TestAnotherProcess(t *testing.T) {
	for _, kind := range []string{"ipc", "vmm"} {
		t.Run(kind, func(t *testing.T) {
			g := newGPU(t)
			lib, dir := driverPath(t), transporttest.SocketDir(t)
			offer, handle, kill := transporttest.StartSource(t, kind+":"+lib+":"+dir)
			target := newEnd(t, g, dir, small)
			defer target.Memory.Close()
			p := testkit.Must(target.Transport.Open(t.Context(), transporttest.Receiver, offer))
			defer p.Close()
			theirs := transporttest.HeapMemory(small)
			theirs.Checksum = transport.Multiply
			transporttest.FillBytes(theirs.Bytes, 1)
			plan := transporttest.OrderedPlan(theirs, 0, 0, small.Blocks)
			if _, err := p.Pull(t.Context(), plan); err != nil {
				t.Errorf("pull from another process: %v", err)
			}
			target.Read()
			if sums := target.Memory.Sums(nil, plan.Dst); !slices.Equal(sums, plan.Sums) {
				t.Error("the pools differ")
			}
			if kind == "ipc" { // the daemon beside an engine attaches its pool like this
				encoded := testkit.Must(hex.DecodeString(handle))
				h := testkit.Must(ParseHandle(encoded, small.MinSize()))
				attached := testkit.Must(Attach(g, h, nil, small))
				sums, err := attached.Device.Sums(nil, attached.Layout, plan.Src)
				if err != nil || !slices.Equal(sums, plan.Sums) {
					t.Errorf("checksums of an attached pool: %v", err)
				}
				attached.Close()
				if os.Getenv("CASCADE_TEST_CUDA") == "" {
					c := fake.Open(t, lib)
					c.Fail("cuIpcOpenMemHandle_v2", 1, transientCode)
					if _, err := Attach(g, h, nil, small); err == nil || !strings.Contains(err.Error(), "cuIpcOpenMemHandle_v2: CUDA_ERROR_OUT_OF_MEMORY (2)") {
						t.Errorf("a pool that cannot be attached: %v", err)
					}
					for _, code := range []int{1, 500} { // the driver does not know the size of imported memory
						c.Fail("cuMemGetAddressRange_v2", 1, code)
						silent, err := Attach(g, h, nil, small)
						if err != nil {
							t.Fatalf("code %d: %v", code, err)
						}
						silent.Close()
					}
					c.Fail("cuMemGetAddressRange_v2", 1, transientCode)
					live := c.Live("ipc")
					if _, err := Attach(g, h, nil, small); err == nil || !strings.Contains(err.Error(), "cuMemGetAddressRange_v2") || c.Live("ipc") != live {
						t.Errorf("a pool whose size is unknown: %v", err)
					}
					c.Fail("cuMemGetAddressRange_v2", 1, transientCode)
					c.Fail("cuIpcCloseMemHandle", 1, transientCode)
					if _, err := Attach(g, h, nil, small); err == nil || !strings.Contains(err.Error(), "cuIpcCloseMemHandle: CUDA_ERROR_OUT_OF_MEMORY (2)") {
						t.Errorf("a pool that cannot be closed: %v", err)
					}
				}
				larger := small
				larger.Blocks *= 2
				if _, err := Attach(g, h, nil, larger); err == nil {
					t.Error("a pool that is larger than its allocation is attached")
				}
				if _, err := Attach(g, h, os.Stdin, small); err == nil {
					t.Error("a descriptor with an IPC pool is accepted")
				}
			}
			kill()
			if _, err := p.Pull(t.Context(), transporttest.OrderedPlan(theirs, 0, 0, 1)); err == nil {
				t.Error("a pull from a killed process succeeded")
			}
		})
	}
}

// TestPacked compares packed blocks, in any order, with those of the pool.
func TestPacked(t *testing.T) {
	g := newGPU(t)
	// More bytes than are packed at a time, and a block that is larger by itself.
	many := transport.Layout{Blocks: 96, Regions: []transport.Region{{Stride: 64 << 10, Bytes: 64 << 10}, {Offset: 96 * 64 << 10, Stride: 1008, Bytes: 1000}}}
	huge := transport.Layout{Blocks: 2, Regions: []transport.Region{{Stride: 5 << 20, Bytes: 5<<20 - 3}}}
	for name, l := range map[string]transport.Layout{"small": small, "many": many, "huge": huge} {
		m, mirror := newPool(t, g, VMM, l)
		defer m.Close()
		transporttest.End{Memory: m, Mirror: mirror}.Fill(1)
		var blocks []uint32
		var want []byte
		for i := range l.Blocks {
			b := uint32((i*5 + 1) % l.Blocks)
			blocks = append(blocks, b)
			for r := range l.Regions {
				want = append(want, m.RegionBytes(b, r)...)
			}
		}
		got := make([]byte, len(want))
		if err := m.Device.Gather(got, m.Layout, blocks); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: gathered %v, %v", name, bytes.Equal(got, want), err)
		}
		before := slices.Clone(m.Bytes)
		clear(m.Bytes)
		mirror.Store()
		if err := m.Device.Scatter(m.Layout, blocks, want); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		mirror.Load()
		for b := range uint32(l.Blocks) {
			for r, g := range l.Regions {
				at := g.Offset + int64(b)*g.Stride
				if !bytes.Equal(m.RegionBytes(b, r), before[at:at+g.Bytes]) {
					t.Fatalf("%s: block %d differs after Scatter", name, b)
				}
			}
		}
		if m.Device.Gather(got[1:], m.Layout, blocks) == nil || m.Device.Scatter(m.Layout, blocks, want[1:]) == nil {
			t.Errorf("%s: a wrong length is accepted", name)
		}
		if err := m.Device.Gather(nil, m.Layout, nil); err != nil {
			t.Error(err)
		}
	}
}
