package move_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	libcuda "github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/cuda"
)

// onGPUs are the faults of fake GPUs.
var onGPUs = deviceFaults("'s GPU fails", "'s GPU is dead", "fake_dead")

// TestFaultAtEveryStepOverGPUs injects each fault at each step of migrations over cuda, between
// pools on fake GPUs, one GPU per replica; see deviceStride.
func TestFaultAtEveryStepOverGPUs(t *testing.T) {
	library := fake.CUDA(t)
	f := &gpuHosts{sharedDevices: &sharedDevices{control: fake.Open(t, library)}}
	f.control.Set("fake_devices", spare)
	defer f.control.Set("fake_devices", 2)
	var err error
	f.driver, err = libcuda.Open(library)
	fake.RequireOpened(t, err)
	if f.dir, err = os.MkdirTemp("", "gpus"); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(f.dir)
	f.open(t)
	t.Run("kinds", func(t *testing.T) {
		faultAtEveryStep(t, slices.Concat(kinds, onGPUs), deviceStride(), func(n *replica) carrier { return f.carry(n) })
	})
	for _, b := range f.maps {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	}
	if n := f.control.Live(""); n != 0 {
		t.Errorf("%d handles are left", n)
	}
	t.Logf("%d pulls, %d of them failed", f.pulls, f.failed)
	if f.pulls == f.failed || f.failed == 0 {
		t.Error("all went well, or nothing")
	}
}

// gpuHosts are GPUs that can access each other.
type gpuHosts struct {
	*sharedDevices
	driver *libcuda.Driver
	dir    string

	mu   sync.Mutex
	maps [][]byte // mappings of the pools for the engines; they outlive their scenes
}

// gpuPool is a pool on a GPU, as the GPU's transport sees it.
type gpuPool struct{ memory *transport.Memory }

func (p gpuPool) Memory() (*transport.Memory, bool) { return p.memory, true }

// carry puts the engine's pool on a GPU. The engine accesses the bytes directly, and all others
// through the GPU.
func (f *gpuHosts) carry(n *replica) *deviceCarrier {
	c := f.newCarrier(n)
	f.runOutside(func() {
		must := func(err error) {
			if err != nil {
				panic(err)
			}
		}
		c.device = <-f.devices
		gpu, err := cuda.NewGPU(cuda.GPUConfig{Driver: f.driver, Ordinal: c.device})
		must(err)
		memory, err := cuda.Allocate(gpu, cuda.VMM, layout)
		must(err)
		file, err := memory.Device.(*cuda.Memory).Descriptor()
		must(err)
		defer file.Close()
		bytes, err := unix.Mmap(int(file.Fd()), 0, int(layout.MinSize()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		must(err)
		f.mu.Lock()
		f.maps = append(f.maps, bytes)
		f.mu.Unlock()
		n.engine.memory = &transport.Memory{Layout: memory.Layout, Bytes: bytes, Device: outsideDevice{f.sharedDevices, memory}}
		c.Transport, err = cuda.New(cuda.Config{Dir: f.dir, Pool: gpuPool{memory}})
		must(err)
		c.serve = func() func() error {
			stop := c.runTransport()
			return func() error {
				defer c.returnDevice()
				err := stop()
				memory.Close()
				return errors.Join(err, gpu.Close())
			}
		}
	})
	c.breakPull = func(ctx context.Context, p transport.Puller, _ *deviceCarrier, plan transport.Plan) error {
		c.setFake("fake_break")
		_, err := p.Pull(ctx, plan)
		if err == nil && len(plan.Src) > 0 {
			c.n.w.fail("%s: a pull on a GPU that has failed", c.n.id)
		}
		return errors.Join(err, errors.New("the GPU has failed"))
	}
	return c
}

// outsideDevice calls a pool's device outside of the bubble.
type outsideDevice struct {
	f *sharedDevices
	m *transport.Memory
}

func (o outsideDevice) ask(g func(transport.Device) error) (err error) {
	o.f.runOutside(func() {
		if !o.m.Hold() {
			err = errors.New("the pool is closed")
			return
		}
		defer o.m.Release()
		err = g(o.m.Device)
	})
	return err
}

func (o outsideDevice) Sums(dst []uint32, l transport.Layout, blocks []uint32) (sums []uint32, err error) {
	err = o.ask(func(d transport.Device) (err error) {
		sums, err = d.Sums(dst, l, blocks)
		return err
	})
	return sums, err
}

func (o outsideDevice) Gather(dst []byte, l transport.Layout, blocks []uint32) error {
	return o.ask(func(d transport.Device) error { return d.Gather(dst, l, blocks) })
}

func (o outsideDevice) Scatter(l transport.Layout, blocks []uint32, src []byte) error {
	return o.ask(func(d transport.Device) error { return d.Scatter(l, blocks, src) })
}
