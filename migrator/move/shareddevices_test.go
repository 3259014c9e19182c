package move_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/device/fake"
	libibverbs "github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// spare is the number of fake devices; each replica has its own.
const spare = 128

// deviceStride is the stride of the steps with fake devices: a fourth of them for each fault, such
// that each step gets a fourth of the faults, or with CASCADE_TEST_ALL=1 all of them.
func deviceStride() int {
	if os.Getenv("CASCADE_TEST_ALL") != "" {
		return 1
	}
	return 4
}

// sharedDevices holds the devices that the replicas of all scenes share. The devices are outside of
// the scenes' bubbles, as are the transports: their sockets, threads and time are real. Calls to
// them take none of a bubble's time, because the bubble's clock stands still meanwhile.
type sharedDevices struct {
	library *libibverbs.Library
	control *fake.Control // nil for a real device
	devices chan int      // unused
	idle    chan *outsideCall
	errands chan *outsideCall

	mu            sync.Mutex
	pulls, failed int
}

// outsideCall is a call that runs outside of all bubbles. Its channel belongs to no bubble.
type outsideCall struct {
	f    func()
	done chan struct{}
}

// open runs outside calls until the test ends.
func (f *sharedDevices) open(t *testing.T) {
	const most = 1024
	f.devices, f.idle, f.errands = make(chan int, spare), make(chan *outsideCall, most), make(chan *outsideCall)
	for i := range spare {
		f.devices <- i
	}
	for range most {
		f.idle <- &outsideCall{done: make(chan struct{}, 1)}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range f.errands {
			go func() {
				e.f()
				e.done <- struct{}{}
			}()
		}
	}()
	t.Cleanup(func() { close(f.errands); <-done })
}

// runOutside runs g outside of the bubble. g must not access objects of the bubble.
func (f *sharedDevices) runOutside(g func()) {
	e := <-f.idle
	e.f = g
	f.errands <- e
	<-e.done
	f.idle <- e
}

// runOutsideContext is runOutside for a function with a context.
func (f *sharedDevices) runOutsideContext(ctx context.Context, g func(context.Context) error) error {
	outer, cancel := context.WithCancel(context.Background())
	defer f.runOutside(cancel)
	defer context.AfterFunc(ctx, func() { f.runOutside(cancel) })()
	var err error
	f.runOutside(func() { err = g(outer) })
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// deviceCarrier is the carrier of a replica over a transport outside of the bubble.
type deviceCarrier struct {
	*sharedDevices
	transport.Transport // the real one
	n                   *replica
	device              int
	serve               func() (stop func() error) // runs the transport; called outside of the bubble
	// breakPull breaks what a pull of the plan needs, and returns the error with which it fails.
	breakPull func(ctx context.Context, p transport.Puller, source *deviceCarrier, plan transport.Plan) error
	hangUp    func() // breaks all connections of peers

	mu       sync.Mutex
	address  string                                   // at which peers reach the real transport; "" for none
	deadline map[[transport.TicketSize]byte]time.Time // in the bubble's time
}

func (f *sharedDevices) newCarrier(n *replica) *deviceCarrier {
	return &deviceCarrier{sharedDevices: f, n: n, deadline: map[[transport.TicketSize]byte]time.Time{}}
}

// setFake calls a function of the fake library for the replica's device.
func (c *deviceCarrier) setFake(call string) {
	c.runOutside(func() { c.control.Set(call, c.device) })
}

// breakFor breaks a fake device for some time.
func (c *deviceCarrier) breakFor(s *scene, call string, most time.Duration) {
	c.setFake(call)
	s.addLasting(1)
	s.wg.Go(func() {
		defer s.addLasting(-1)
		time.Sleep(most)
		c.setFake("fake_mend")
	})
}

// deviceFaults returns the faults of the fake devices of source and target: a device fails
// permanently (fake_break), or the call outage takes it out for a while.
func deviceFaults(fails, isOut, outage string) (out []faultKind) {
	for _, end := range []struct {
		name string
		of   func(*scene) *replica
	}{{"source", func(s *scene) *replica { return s.source }}, {"target", func(s *scene) *replica { return s.target }}} {
		device := func(s *scene) *deviceCarrier { return end.of(s).carrier.(*deviceCarrier) }
		out = append(out,
			faultKind{end.name + fails, func(s *scene, _ *rand.Rand) verdict { device(s).setFake("fake_break"); return goOn }},
			faultKind{end.name + isOut, func(s *scene, r *rand.Rand) verdict {
				device(s).breakFor(s, outage, randomOutage(r))
				return goOn
			}})
	}
	return out
}

func (*deviceCarrier) CanReach(string, string) bool { return true }

func (c *deviceCarrier) Probe(context.Context) (err error) {
	c.runOutside(func() { err = c.Transport.Probe(context.Background()) })
	return err
}

// Run serves until the bubble's ctx ends.
func (c *deviceCarrier) Run(ctx context.Context) (err error) {
	var stop func() error
	c.runOutside(func() { stop = c.serve() })
	<-ctx.Done()
	c.runOutside(func() { err = stop() })
	if err != nil {
		c.n.w.fail("%s: %v", c.n.id, err)
	}
	return err
}

// runTransport runs the real transport, waits until it has opened its device, and returns the
// function that stops it.
func (c *deviceCarrier) runTransport() (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Transport.Run(ctx) }()
	for limit := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Microsecond) {
		_, err := c.Transport.Export(transport.Grant{Migration: "warm-up", Receiver: "b", Deadline: time.Now().Add(time.Minute)})
		if err == nil {
			c.Transport.Revoke("warm-up")
			break
		}
		if time.Now().After(limit) {
			panic(err)
		}
	}
	return func() error { cancel(); return <-done }
}

// returnDevice makes the device available to the next replica.
func (c *deviceCarrier) returnDevice() {
	if c.control != nil {
		c.control.Set("fake_mend", c.device)
		c.devices <- c.device
	}
}

func (c *deviceCarrier) where() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.address
}

func (c *deviceCarrier) setAddress(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.address = address
}

// Export gives the real grant a long deadline: this wrapper enforces the deadline in the bubble's
// time.
func (c *deviceCarrier) Export(g transport.Grant) (offer transport.Offer, err error) {
	until := g.Deadline
	c.runOutside(func() {
		g.Deadline = time.Now().Add(time.Hour)
		offer, err = c.Transport.Export(g)
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

func (c *deviceCarrier) Revoke(migration string) {
	c.runOutside(func() { c.Transport.Revoke(migration) })
}

// Open presents a ticket to the replica of its address.
func (c *deviceCarrier) Open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (transport.Puller, error) {
	source := c.n.w.replica(policies.ReplicaID(offer.Address)).carrier.(*deviceCarrier)
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
	p := &puller{n: c.n, fabric: c.sharedDevices, deadline: deadline}
	err := c.runOutsideContext(ctx, func(ctx context.Context) (err error) {
		p.real, err = c.Transport.Open(ctx, receiver, offer)
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

// pull makes pulls fail in the middle of a plan, or corrupts the last block's bytes in transit, as
// the verdict demands.
func (c *deviceCarrier) pull(ctx context.Context, p transport.Puller, source *replica, plan transport.Plan, v verdict) (transport.Stats, error) {
	half, regions := len(plan.Src)/2, len(layout.Regions)
	switch {
	case v == refuse:
		head := transport.Plan{Src: plan.Src[:half], Dst: plan.Dst[:half], Sums: plan.Sums[:half*regions]}
		if _, err := p.Pull(ctx, head); err != nil {
			return transport.Stats{}, err
		}
		return transport.Stats{}, c.breakPull(ctx, p, source.carrier.(*deviceCarrier), plan)
	case v == rot && len(plan.Src) > 0:
		b := source.engine.memory.RegionBytes(plan.Src[len(plan.Src)-1], 0)
		b[0] ^= 0xff
		defer func() { b[0] ^= 0xff }()
	}
	return p.Pull(ctx, plan)
}

// puller pulls outside of the bubble, until the deadline in the bubble's time.
type puller struct {
	n        *replica
	fabric   *sharedDevices
	real     transport.Puller
	deadline time.Time // in the bubble's time
}

func (p *puller) Pull(ctx context.Context, plan transport.Plan) (stats transport.Stats, err error) {
	if !time.Now().Before(p.deadline) {
		return stats, context.DeadlineExceeded
	}
	f := p.fabric
	err = f.runOutsideContext(ctx, func(ctx context.Context) (err error) {
		stats, err = p.real.Pull(ctx, plan)
		return err
	})
	stats.Duration = 0
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pulls++
	if err != nil {
		f.failed++
	}
	return stats, err
}

func (p *puller) Close() (err error) {
	p.fabric.runOutside(func() { err = p.real.Close() })
	if err != nil {
		p.n.w.fail("%s: close: %v", p.n.id, err)
	}
	return err
}
