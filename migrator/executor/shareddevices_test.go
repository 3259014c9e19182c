package executor_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/device/fake"
	libibverbs "github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// spare is the number of fake devices; each replica has its own.
const spare = 128

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

// breakDevice breaks a fake device for some time.
func (s *scene) breakDevice(control func(what string), how string, most time.Duration) {
	control(how)
	s.addLasting(1)
	s.wg.Go(func() {
		defer s.addLasting(-1)
		time.Sleep(most)
		control("fake_mend")
	})
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
