package host

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// The intervals of a Watchdog. Most calls take a microsecond, so most checks see none:
// a check every millisecond, all the time, took 4 % of a core.
const (
	watchInterval     = time.Millisecond     // between checks, while a call is running
	watchIdleInterval = 5 * time.Millisecond // while no call is running
)

// runningCall is the state of an instance's call in one word, so that either the call
// ends or the watchdog ends it, but never both. The lowest byte is 0 between calls,
// killed after a Watchdog ended the call, else 1 + the kind. The other bytes count the
// calls.
type runningCall struct{ atomic.Uint64 }

const killed = 0xff

// Watchdog ends calls that exceed their wall limit. It checks all instances every 5 ms,
// and every millisecond while a call is running, so that calls need not notify it. It
// ends a call at most 6 ms after its limit, plus the time that the machine takes to wake
// a goroutine. That suffices, because fuel ends nearly all calls long before.
//
// One Watchdog serves all modules of a process.
type Watchdog struct {
	mu   sync.Mutex
	seen map[*Instance]observation
}

// observation is the call in which an instance was last seen, and since when.
type observation struct {
	word  uint64
	since time.Time
}

// NewWatchdog returns a watchdog. It ends no call before Run.
func NewWatchdog() *Watchdog { return &Watchdog{seen: map[*Instance]observation{}} }

// Run ends calls until the context is done, and returns nil.
func (w *Watchdog) Run(ctx context.Context) error {
	timer := time.NewTimer(watchInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-timer.C:
			if w.check(now) {
				timer.Reset(watchInterval)
			} else {
				timer.Reset(watchIdleInterval)
			}
		}
	}
}

// check ends the calls that exceeded their limit, and reports whether a call is running.
func (w *Watchdog) check(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	calls := false
	for i, s := range w.seen {
		word := i.running.Load()
		if byte(word) == 0 || byte(word) == killed {
			continue
		}
		calls = true
		switch {
		case word != s.word:
			w.seen[i] = observation{word, now}
		case now.Sub(s.since) >= i.wallLimit(byte(word)):
			if i.running.CompareAndSwap(word, word|killed) {
				i.kill.Set(1)
			}
		}
	}
	return calls
}

func (w *Watchdog) add(i *Instance) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[i] = observation{}
}

func (w *Watchdog) remove(i *Instance) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.seen, i)
}
