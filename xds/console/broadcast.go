package console

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/internal/wakeup"
)

var errStopped = errors.New("the control plane is stopping")

// broadcast computes one event per interval while there are viewers, and gives it to all of them.
type broadcast struct {
	interval   time.Duration
	maxViewers int
	arrived    chan struct{} // capacity 1: a viewer has come

	mu       sync.Mutex
	viewers  map[*viewer]struct{}
	latest   []byte
	latestAt time.Time // when latest was computed
	ended    bool
}

// viewer is one reader of events.
type viewer struct {
	// next has the newest event that the viewer has not taken; older ones are replaced, because each
	// has the whole state. It is closed when there will be no more. Capacity 1.
	next chan []byte
}

func newBroadcast(interval time.Duration, maxViewers int) *broadcast {
	return &broadcast{interval: interval, maxViewers: maxViewers, arrived: make(chan struct{}, 1), viewers: make(map[*viewer]struct{})}
}

// subscribe adds a viewer. It gets the latest event at once if that is recent.
func (b *broadcast) subscribe(now time.Time) (*viewer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return nil, errStopped
	}
	if len(b.viewers) >= b.maxViewers {
		return nil, fmt.Errorf("%d viewers watch the fleet already, and there may be no more; close another page, or use \"cascade status --watch\"", b.maxViewers)
	}
	v := &viewer{next: make(chan []byte, 1)}
	b.viewers[v] = struct{}{}
	if b.latest != nil && now.Sub(b.latestAt) < 2*b.interval {
		v.next <- b.latest
	}
	wakeup.Send(b.arrived)
	return v, nil
}

func (b *broadcast) unsubscribe(v *viewer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.viewers, v)
}

// count returns the number of viewers.
func (b *broadcast) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.viewers)
}

// run computes events until ctx ends.
func (b *broadcast) run(ctx context.Context, compute func(time.Time) []byte) {
	defer b.end()
	for {
		if b.count() == 0 {
			select {
			case <-ctx.Done():
				return
			case <-b.arrived:
			}
			continue // the viewer may have left again
		}
		now := time.Now()
		if event := compute(now); event != nil {
			b.publish(event, now)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(b.interval):
		}
	}
}

// publish gives an event to all viewers. It never waits for one.
func (b *broadcast) publish(event []byte, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.latest, b.latestAt = event, now
	for v := range b.viewers {
		select {
		case <-v.next: // the viewer is late, and misses this one
		default:
		}
		v.next <- event // there is room: events are sent here only, and in subscribe before
	}
}

// end closes the channels of all viewers.
func (b *broadcast) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	for v := range b.viewers {
		close(v.next)
	}
	clear(b.viewers)
}
