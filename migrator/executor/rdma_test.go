package executor_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	libibverbs "github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/verbs"
	"github.com/cascadeinfer/cascade/policies"
)

// onDevices are the faults of a fake RDMA device; a real device injects none of them.
var onDevices = deviceFaults("'s device fails", " is unplugged", "fake_unplug")

// TestFaultAtEveryStepOverRDMA injects each fault at each step of migrations over verbs: on a fake
// device, which can fail as well, or, if CASCADE_TEST_VERBS is set, on the machine's own device. An
// emulated machine is slow: unless the variable is "all", the test uses a sixth of the steps for
// each fault there, such that each step gets a sixth of the faults; pulls get all faults.
func TestFaultAtEveryStepOverRDMA(t *testing.T) {
	overRDMA(t, func(e *engine, _ *atomic.Bool) transport.Pool { return e })
}

// TestFaultAtEveryStepByHost does the same with pools that no NIC can access, as GPU pools may be.
// The blocks then pass through host memory.
func TestFaultAtEveryStepByHost(t *testing.T) {
	if os.Getenv("CASCADE_TEST_VERBS") != "" {
		t.Skip("the fake device has the same, and is faster")
	}
	overRDMA(t, func(e *engine, fails *atomic.Bool) transport.Pool {
		return &farPool{e, &transport.Memory{Layout: e.memory.Layout, Device: unreachableDevice{e.memory, fails}}}
	}, onFar...)
}

// onFar are the faults of pools that no NIC can access.
var onFar = []faultKind{
	{"source copies nothing", func(s *scene, r *rand.Rand) verdict { s.source.carrier.(*rdmaTransport).failGPU(s, r); return goOn }},
	{"target copies nothing", func(s *scene, r *rand.Rand) verdict { s.target.carrier.(*rdmaTransport).failGPU(s, r); return goOn }},
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
		stride, path = 1, fake.Verbs(t)
		f.control = fake.Open(t, path)
		f.control.Set("fake_devices", spare)
		kinds = append(kinds, onDevices...)
	}
	kinds = append(kinds, more...)
	var err error
	if f.library, err = libibverbs.Open(path); errors.Is(err, device.ErrNoCgo) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
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
	fmt.Printf("\nrdma-check: migrations | %d faults at %d steps of moves, every %s pair of them | %d pulls, %d of them failed; nothing left\n", len(kinds), len(points), map[int]string{1: "single", 6: "sixth"}[stride], f.pulls, f.failed)
}

// rdmaTransport is a replica's transport over verbs, with the server through which peers reach it.
type rdmaTransport struct {
	fabric *sharedDevices
	real   *verbs.Transport
	n      *replica
	device int
	// gpuFails makes the pool's GPU fail.
	gpuFails atomic.Bool

	mu       sync.Mutex
	address  string // of the server; "" unless it runs
	conns    map[net.Conn]bool
	deadline map[[transport.TicketSize]byte]time.Time // in the bubble's time
}

func (f *sharedDevices) carry(n *replica, pool func(*engine, *atomic.Bool) transport.Pool) carrier {
	r := &rdmaTransport{fabric: f, n: n, conns: map[net.Conn]bool{}, deadline: map[[transport.TicketSize]byte]time.Time{}}
	p := pool(n.engine, &r.gpuFails)
	f.runOutside(func() {
		name := ""
		if f.control != nil {
			r.device = <-f.devices
			name = "fake" + strconv.Itoa(r.device)
		}
		device := func() string { return name }
		var err error
		if r.real, err = verbs.New(verbs.Config{Library: f.library, Device: device, Address: r.where, Pool: p}); err != nil {
			panic(err)
		}
	})
	return r
}

// failGPU makes the replica's GPU fail for a while.
func (r *rdmaTransport) failGPU(s *scene, rng *rand.Rand) {
	s.breakDevice(func(how string) { r.gpuFails.Store(how != "fake_mend") }, "fails", randomOutage(rng))
}

// setFake calls a function of the fake library for the local device.
func (r *rdmaTransport) setFake(what string) {
	r.fabric.runOutside(func() { r.fabric.control.Set(what, r.device) })
}

func (r *rdmaTransport) where() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.address
}

func (r *rdmaTransport) Name() string               { return r.real.Name() }
func (*rdmaTransport) CanReach(string, string) bool { return true }

func (r *rdmaTransport) Probe(context.Context) (err error) {
	r.fabric.runOutside(func() { err = r.real.Probe(context.Background()) })
	return err
}

// Run serves until the bubble's ctx ends.
func (r *rdmaTransport) Run(ctx context.Context) error {
	var stop func() error
	r.fabric.runOutside(func() { stop = r.serve() })
	<-ctx.Done()
	var err error
	r.fabric.runOutside(func() { err = stop() })
	if err != nil {
		r.n.w.fail("%s: %v", r.n.id, err)
	}
	return err
}

// serve starts the server and the transport, and returns the function that stops them.
func (r *rdmaTransport) serve() func() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	server := &http.Server{Handler: r.real.Handler(), Protocols: new(http.Protocols), ConnState: r.connected}
	server.Protocols.SetUnencryptedHTTP2(true)
	ctx, cancel := context.WithCancel(context.Background())
	served, ran := make(chan error, 1), make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	r.mu.Lock()
	r.address = l.Addr().String()
	r.mu.Unlock()
	go func() { ran <- r.real.Run(ctx) }()
	for limit := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Microsecond) { // until it has opened its device
		_, err := r.real.Export(transport.Grant{Migration: "warm-up", Receiver: "b", Deadline: time.Now().Add(time.Minute)})
		if err == nil {
			r.real.Revoke("warm-up")
			break
		}
		if time.Now().After(limit) {
			panic(err)
		}
	}
	return func() error {
		cancel()
		err := <-ran
		r.mu.Lock()
		r.address = ""
		r.mu.Unlock()
		server.Close()
		<-served
		if r.fabric.control != nil {
			r.fabric.control.Set("fake_mend", r.device)
			r.fabric.devices <- r.device
		}
		return err
	}
}

func (r *rdmaTransport) connected(c net.Conn, s http.ConnState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch s {
	case http.StateNew:
		r.conns[c] = true
	case http.StateClosed, http.StateHijacked:
		delete(r.conns, c)
	}
}

// hangUp breaks all connections of the server.
func (r *rdmaTransport) hangUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		c.Close()
	}
}

// Export gives the real grant a long deadline: this wrapper enforces the deadline in the bubble's
// time.
func (r *rdmaTransport) Export(g transport.Grant) (offer transport.Offer, err error) {
	until := g.Deadline
	r.fabric.runOutside(func() {
		g.Deadline = time.Now().Add(time.Hour)
		offer, err = r.real.Export(g)
	})
	if err != nil {
		return offer, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deadline[offer.Ticket] = until
	offer.Address = string(r.n.id)
	return offer, nil
}

func (r *rdmaTransport) Revoke(move string) { r.fabric.runOutside(func() { r.real.Revoke(move) }) }

// Open presents a ticket to the replica of its address.
func (r *rdmaTransport) Open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (transport.Puller, error) {
	source := r.n.w.replica(policies.ReplicaID(offer.Address)).carrier.(*rdmaTransport)
	source.mu.Lock()
	deadline := source.deadline[offer.Ticket]
	offer.Address = source.address
	source.mu.Unlock()
	if offer.Address == "" {
		return nil, errors.New("no server at this address")
	}
	if !time.Now().Before(deadline) {
		return nil, transport.ErrRefused
	}
	p := &puller{n: r.n, fabric: r.fabric, deadline: deadline}
	err := r.fabric.runOutsideContext(ctx, func(ctx context.Context) (err error) {
		p.real, err = r.real.Open(ctx, receiver, offer)
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

// pull breaks the connection in the middle of a plan, or corrupts the last block's bytes in
// transit, as the verdict demands.
func (r *rdmaTransport) pull(ctx context.Context, p transport.Puller, source *replica, plan transport.Plan, v verdict) (transport.Stats, error) {
	half, regions := len(plan.Src)/2, len(layout.Regions)
	switch {
	case v == refuse:
		head := transport.Plan{Src: plan.Src[:half], Dst: plan.Dst[:half], Sums: plan.Sums[:half*regions]}
		if _, err := p.Pull(ctx, head); err != nil {
			return transport.Stats{}, err
		}
		r.fabric.runOutside(source.carrier.(*rdmaTransport).hangUp)
		for { // until the puller detects it
			if _, err := p.Pull(ctx, transport.Plan{}); err != nil {
				return transport.Stats{}, err
			}
		}
	case v == rot && len(plan.Src) > 0:
		b := source.engine.memory.RegionBytes(plan.Src[len(plan.Src)-1], 0)
		b[0] ^= 0xff
		defer func() { b[0] ^= 0xff }()
	}
	return p.Pull(ctx, plan)
}
