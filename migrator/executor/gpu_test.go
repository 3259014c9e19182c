package executor_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/migrator/device"
	libcuda "github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/cuda"
	"github.com/cascadeinfer/cascade/policies"
)

// onGPUs are the faults of fake GPUs.
var onGPUs = deviceFaults("'s GPU fails", "'s GPU is dead", "fake_dead")

// fakeDevice is the carrier of a replica whose device is a fake.
type fakeDevice interface{ setFake(call string) }

// deviceFaults returns the faults of the fake devices of source and target: a device fails
// permanently (fake_break), or the call outage takes it out for a while.
func deviceFaults(fails, isOut, outage string) (out []faultKind) {
	for _, end := range []struct {
		name string
		of   func(*scene) *replica
	}{{"source", func(s *scene) *replica { return s.source }}, {"target", func(s *scene) *replica { return s.target }}} {
		device := func(s *scene) fakeDevice { return end.of(s).carrier.(fakeDevice) }
		out = append(out,
			faultKind{end.name + fails, func(s *scene, _ *rand.Rand) verdict { device(s).setFake("fake_break"); return goOn }},
			faultKind{end.name + isOut, func(s *scene, r *rand.Rand) verdict {
				s.breakDevice(device(s).setFake, outage, randomOutage(r))
				return goOn
			}})
	}
	return out
}

// TestFaultAtEveryStepOverGPUs injects each fault at each step of migrations over cuda, between
// pools on fake GPUs, one GPU per replica.
func TestFaultAtEveryStepOverGPUs(t *testing.T) {
	library := fake.CUDA(t)
	f := &gpuHosts{sharedDevices: &sharedDevices{control: fake.Open(t, library)}}
	f.control.Set("fake_devices", spare)
	defer f.control.Set("fake_devices", 2)
	var err error
	if f.driver, err = libcuda.Open(library); errors.Is(err, device.ErrNoCgo) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	if f.dir, err = os.MkdirTemp("", "gpus"); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(f.dir)
	f.open(t)
	t.Run("kinds", func(t *testing.T) {
		faultAtEveryStep(t, append(append([]faultKind(nil), kinds...), onGPUs...), 1, func(n *replica) carrier { return f.carry(n) })
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

// gpuTransport is a replica's transport over its GPU.
type gpuTransport struct {
	racks  *gpuHosts
	real   *cuda.Transport
	gpu    *cuda.GPU
	memory *transport.Memory // as the transport sees it
	n      *replica
	device int

	mu       sync.Mutex
	address  string                                   // of the source
	deadline map[[transport.TicketSize]byte]time.Time // in the bubble's time
}

// carry puts the engine's pool on a GPU. The engine accesses the bytes directly, and all others
// through the GPU.
func (f *gpuHosts) carry(n *replica) *gpuTransport {
	c := &gpuTransport{racks: f, n: n, deadline: map[[transport.TicketSize]byte]time.Time{}}
	f.runOutside(func() {
		c.device = <-f.devices
		must := func(err error) {
			if err != nil {
				panic(err)
			}
		}
		var err error
		c.gpu, err = cuda.NewGPU(cuda.GPUConfig{Driver: f.driver, Ordinal: c.device})
		must(err)
		c.memory, err = cuda.Allocate(c.gpu, cuda.VMM, layout)
		must(err)
		file, err := c.memory.Device.(*cuda.Memory).Descriptor()
		must(err)
		defer file.Close()
		bytes, err := unix.Mmap(int(file.Fd()), 0, int(layout.MinSize()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		must(err)
		f.mu.Lock()
		f.maps = append(f.maps, bytes)
		f.mu.Unlock()
		n.engine.memory = &transport.Memory{Layout: c.memory.Layout, Bytes: bytes, Device: outsideDevice{f.sharedDevices, c.memory}}
		c.real, err = cuda.New(cuda.Config{Dir: f.dir, Pool: c})
		must(err)
	})
	return c
}

// Memory returns the pool as the transport sees it.
func (c *gpuTransport) Memory() (*transport.Memory, bool) { return c.memory, true }

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

// setFake calls a function of the fake for the local GPU.
func (c *gpuTransport) setFake(call string) {
	c.racks.runOutside(func() { c.racks.control.Set(call, c.device) })
}

func (c *gpuTransport) Name() string               { return c.real.Name() }
func (*gpuTransport) CanReach(string, string) bool { return true }

func (c *gpuTransport) Probe(context.Context) (err error) {
	c.racks.runOutside(func() { err = c.real.Probe(context.Background()) })
	return err
}

// Run serves until the bubble's ctx ends.
func (c *gpuTransport) Run(ctx context.Context) (err error) {
	var stop func() error
	c.racks.runOutside(func() { stop = c.serve() })
	<-ctx.Done()
	c.racks.runOutside(func() { err = stop() })
	if err != nil {
		c.n.w.fail("%s: %v", c.n.id, err)
	}
	return err
}

// serve starts the transport, and returns the function that stops it and returns the GPU.
func (c *gpuTransport) serve() func() error {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.real.Run(ctx) }()
	for limit := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Microsecond) {
		_, err := c.real.Export(transport.Grant{Migration: "warm-up", Receiver: "b", Deadline: time.Now().Add(time.Minute)})
		if err == nil {
			c.real.Revoke("warm-up")
			break
		}
		if time.Now().After(limit) {
			panic(err)
		}
	}
	return func() error {
		cancel()
		err := <-done
		c.memory.Close()
		err = errors.Join(err, c.gpu.Close())
		c.racks.control.Set("fake_mend", c.device)
		c.racks.devices <- c.device
		return err
	}
}

// Export gives the real grant a long deadline: this wrapper enforces the deadline in the bubble's
// time.
func (c *gpuTransport) Export(g transport.Grant) (offer transport.Offer, err error) {
	until := g.Deadline
	c.racks.runOutside(func() {
		g.Deadline = time.Now().Add(time.Hour)
		offer, err = c.real.Export(g)
	})
	if err != nil {
		return offer, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline[offer.Ticket] = until
	c.address, offer.Address = offer.Address, string(c.n.id)
	return offer, nil
}

func (c *gpuTransport) Revoke(move string) { c.racks.runOutside(func() { c.real.Revoke(move) }) }

// Open presents a ticket to the replica of its address.
func (c *gpuTransport) Open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (transport.Puller, error) {
	source := c.n.w.replica(policies.ReplicaID(offer.Address)).carrier.(*gpuTransport)
	source.mu.Lock()
	deadline := source.deadline[offer.Ticket]
	offer.Address = source.address
	source.mu.Unlock()
	if !time.Now().Before(deadline) {
		return nil, transport.ErrRefused
	}
	p := &puller{n: c.n, fabric: c.racks.sharedDevices, deadline: deadline}
	err := c.racks.runOutsideContext(ctx, func(ctx context.Context) (err error) {
		p.real, err = c.real.Open(ctx, receiver, offer)
		return err
	})
	if err != nil {
		if p.real != nil {
			p.Close()
		}
		return nil, err
	}
	return p, nil
}

// pull makes the target's GPU fail in the middle of a plan, or corrupts the last block's bytes in
// transit, as the verdict demands.
func (c *gpuTransport) pull(ctx context.Context, p transport.Puller, source *replica, plan transport.Plan, v verdict) (transport.Stats, error) {
	half, regions := len(plan.Src)/2, len(layout.Regions)
	switch {
	case v == refuse:
		head := transport.Plan{Src: plan.Src[:half], Dst: plan.Dst[:half], Sums: plan.Sums[:half*regions]}
		if _, err := p.Pull(ctx, head); err != nil {
			return transport.Stats{}, err
		}
		c.setFake("fake_break")
		if _, err := p.Pull(ctx, plan); err != nil || len(plan.Src) == 0 {
			return transport.Stats{}, errors.Join(err, errors.New("the GPU has failed"))
		}
		c.n.w.fail("%s: a pull on a GPU that has failed", c.n.id)
	case v == rot && len(plan.Src) > 0:
		b := source.engine.memory.RegionBytes(plan.Src[len(plan.Src)-1], 0)
		b[0] ^= 0xff
		defer func() { b[0] ^= 0xff }()
	}
	return p.Pull(ctx, plan)
}
