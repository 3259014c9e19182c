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

// spare is how many fake devices there are; each replica has its own.
const spare = 128

// fabric is what the replicas of all scenes share. It is outside of their bubbles,
// as are the transports: their sockets, threads and time are real, and what they are
// asked takes none of a bubble's time, whose clock stands still meanwhile.
type fabric struct {
	library *libibverbs.Library
	control *fake.Control // nil for a real device
	devices chan int      // that nobody has
	idle    chan *errand
	errands chan *errand

	mu            sync.Mutex
	pulls, failed int
}

// errand is a call that is made outside. Its channel is no bubble's.
type errand struct {
	f    func()
	done chan struct{}
}

// open runs errands until the test ends.
func (f *fabric) open(t *testing.T) {
	const most = 1024
	f.devices, f.idle, f.errands = make(chan int, spare), make(chan *errand, most), make(chan *errand)
	for i := range spare {
		f.devices <- i
	}
	for range most {
		f.idle <- &errand{done: make(chan struct{}, 1)}
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

// do has something done outside. It must not touch what is the bubble's.
func (f *fabric) do(g func()) {
	e := <-f.idle
	e.f = g
	f.errands <- e
	<-e.done
	f.idle <- e
}

// under is do for what ends with a context.
func (f *fabric) under(ctx context.Context, g func(context.Context) error) error {
	outer, cancel := context.WithCancel(context.Background())
	defer f.do(cancel)
	defer context.AfterFunc(ctx, func() { f.do(cancel) })()
	var err error
	f.do(func() { err = g(outer) })
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// breaks tells a fake device that it is broken, for some time.
func (s *scene) breaks(tell func(what string), how string, most time.Duration) {
	tell(how)
	s.lasting(1)
	s.wg.Go(func() {
		defer s.lasting(-1)
		time.Sleep(most)
		tell("fake_mend")
	})
}

// puller pulls outside, until the bubble's deadline.
type puller struct {
	n        *node
	fabric   *fabric
	real     transport.Puller
	deadline time.Time // of the bubble
}

func (p *puller) Pull(ctx context.Context, plan transport.Plan) (stats transport.Stats, err error) {
	if !time.Now().Before(p.deadline) {
		return stats, context.DeadlineExceeded
	}
	f := p.fabric
	err = f.under(ctx, func(ctx context.Context) (err error) {
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
	p.fabric.do(func() { err = p.real.Close() })
	if err != nil {
		p.n.w.fail("%s: close: %v", p.n.id, err)
	}
	return err
}
