package move_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	libibverbs "github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/verbs"
)

// onDevices are the faults of a fake RDMA device; a real device injects none of them.
var onDevices = deviceFaults("'s device fails", " is unplugged", "fake_unplug")

// TestFaultAtEveryStepOverRDMA injects each fault at each step of migrations over verbs: on a fake
// device, which can fail as well (see deviceStride), or, if CASCADE_TEST_VERBS is set, on the
// machine's own device. An
// emulated machine is slow: unless the variable is "all", the test uses a sixth of the steps for
// each fault there, such that each step gets a sixth of the faults; pulls get all faults.
func TestFaultAtEveryStepOverRDMA(t *testing.T) {
	overRDMA(t, func(e *engine, _ *atomic.Bool) transport.Pool { return e })
}

// TestFaultAtEveryStepByHost does the same with pools that no NIC can access, as GPU pools may be.
// The blocks then pass through host memory.
func TestFaultAtEveryStepByHost(t *testing.T) {
	if os.Getenv("CASCADE_TEST_VERBS") != "" {
		testkit.Skip(t, testkit.Unavailable{What: "the device is a real one, and the fake one is faster", Remedy: "unset CASCADE_TEST_VERBS"})
	}
	overRDMA(t, func(e *engine, fails *atomic.Bool) transport.Pool {
		return &farPool{e, &transport.Memory{Layout: e.memory.Layout, Device: unreachableDevice{e.memory, fails}}}
	}, onFar...)
}

// onFar are the faults of pools that no NIC can access.
var onFar = []faultKind{
	{"source copies nothing", func(s *scene, r *rand.Rand) verdict { s.source.carrier.(*deviceCarrier).failGPU(s, r); return goOn }},
	{"target copies nothing", func(s *scene, r *rand.Rand) verdict { s.target.carrier.(*deviceCarrier).failGPU(s, r); return goOn }},
}

// farPool presents an engine's pool as device memory.
type farPool struct {
	*engine
	m *transport.Memory
}

func (f *farPool) Memory() (*transport.Memory, bool) {
	_, here := f.engine.Memory()
	return f.m, here
}

// unreachableDevice is a device that holds an engine's bytes.
type unreachableDevice struct {
	m     *transport.Memory
	fails *atomic.Bool
}

func (d unreachableDevice) Sums(dst []uint32, _ transport.Layout, blocks []uint32) ([]uint32, error) {
	if d.fails.Load() {
		return dst, errFails
	}
	pack := make([]byte, int64(len(blocks))*d.m.BlockBytes())
	if err := d.Gather(pack, d.m.Layout, blocks); err != nil {
		return dst, err
	}
	for len(pack) > 0 {
		for _, g := range d.m.Regions {
			dst, pack = append(dst, d.m.Checksum.Of(pack[:g.Bytes])), pack[g.Bytes:]
		}
	}
	return dst, nil
}

func (d unreachableDevice) Gather(dst []byte, _ transport.Layout, blocks []uint32) error {
	return d.each(blocks, func(part []byte) { copied(dst, part); dst = dst[len(part):] })
}

func (d unreachableDevice) Scatter(_ transport.Layout, blocks []uint32, src []byte) error {
	return d.each(blocks, func(part []byte) { copied(part, src); src = src[len(part):] })
}

func (d unreachableDevice) each(blocks []uint32, f func(part []byte)) error {
	if d.fails.Load() {
		return errFails
	}
	for _, b := range blocks {
		for r := range d.m.Regions {
			f(d.m.RegionBytes(b, r))
		}
	}
	return nil
}

var errFails = errors.New("the GPU has fallen off the bus")

// copied copies as a device does: unseen, while an engine may write. What is torn has
// another sum.
//
//go:norace
func copied(dst, src []byte) {
	for i := range min(len(dst), len(src)) {
		dst[i] = src[i]
	}
}

// overRDMA injects faults at each step of migrations over verbs.
func overRDMA(t *testing.T, pool func(*engine, *atomic.Bool) transport.Pool, more ...faultKind) {
	f, path, stride := &sharedDevices{}, "", 6
	kinds := slices.Clone(kinds)
	switch os.Getenv("CASCADE_TEST_VERBS") {
	case "all":
		stride = 1
	case "":
		stride, path = deviceStride(), fake.Verbs(t)
		f.control = fake.Open(t, path)
		f.control.Set("fake_devices", spare)
		kinds = append(kinds, onDevices...)
	}
	kinds = append(kinds, more...)
	var err error
	f.library, err = libibverbs.Open(path)
	fake.RequireOpened(t, err)
	f.open(t)
	t.Run("kinds", func(t *testing.T) {
		faultAtEveryStep(t, kinds, stride, func(n *replica) carrier { return f.carry(n, pool) })
	})
	if n := f.library.OpenResources(); n != (libibverbs.Resources{}) {
		t.Errorf("%+v are left", n)
	}
	if f.control != nil && f.control.Live("") != 0 {
		t.Errorf("%d handles are left", f.control.Live(""))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	fmt.Printf("\nrdma-check: migrations | %d faults at %d steps of moves, every %s pair of them | %d pulls, %d of them failed; nothing left\n", len(kinds), len(points), map[int]string{1: "single", 4: "fourth", 6: "sixth"}[stride], f.pulls, f.failed)
}

// carry gives a replica a transport over verbs, and the server through which peers reach it.
func (f *sharedDevices) carry(n *replica, pool func(*engine, *atomic.Bool) transport.Pool) carrier {
	c := f.newCarrier(n)
	p := pool(n.engine, &c.gpuFails)
	f.runOutside(func() {
		name := ""
		if f.control != nil {
			c.device = <-f.devices
			name = "fake" + strconv.Itoa(c.device)
		}
		real := testkit.Must(verbs.New(verbs.Config{Library: f.library, Device: func() string { return name }, Address: c.where, Pool: p}))
		c.Transport, c.serve = real, func() func() error { return c.serveVerbs(real.Handler()) }
	})
	c.breakPull = func(ctx context.Context, p transport.Puller, source *deviceCarrier, _ transport.Plan) (err error) {
		f.runOutside(source.hangUp)
		for err == nil { // until the puller detects it
			_, err = p.Pull(ctx, transport.Plan{})
		}
		return err
	}
	return c
}

// failGPU makes the GPU of the replica's pool fail for a while.
func (c *deviceCarrier) failGPU(s *scene, rng *rand.Rand) {
	s.breakDevice(func(call string) { c.gpuFails.Store(call != "fake_mend") }, "fails", randomOutage(rng))
}

// serveVerbs runs the server and the transport, and returns the function that stops them.
func (c *deviceCarrier) serveVerbs(h http.Handler) func() error {
	server := httptest.NewUnstartedServer(h)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	c.setAddress(server.Listener.Addr().String())
	c.hangUp = server.CloseClientConnections
	stop := c.runTransport()
	return func() error {
		defer c.returnDevice()
		err := stop()
		c.setAddress("")
		server.CloseClientConnections()
		server.Close()
		return err
	}
}
