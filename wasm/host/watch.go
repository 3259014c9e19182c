package host

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// The pace of a Watch. Most calls take a microsecond, so that most looks see
// none: to look every millisecond all the time took 4 % of a core.
const (
	watchTick = time.Millisecond     // between two looks, while a call is seen
	watchIdle = 5 * time.Millisecond // while none is
)

// running is what an instance does now, as one word, so that the end of a call
// and the end of its time cannot both happen: 0 in the lowest byte between
// calls, killed in it after a Watch ended one, else 1 + the kind. The rest
// numbers the calls.
type running struct{ atomic.Uint64 }

const killed = 0xff

// Watch ends calls that exceed their wall limit. It is told nothing when a call
// begins or ends: it looks at all instances every 5 ms, and every millisecond
// while it sees a call. A call is ended at most 6 ms after its limit, plus what
// the machine takes to wake a goroutine. That is enough, because it is fuel that
// ends nearly all of them, long before.
//
// One Watch serves all modules of a process.
type Watch struct {
	mu   sync.Mutex
	seen map[*Instance]sighting
}

// sighting is the call that an instance was seen in, and since when.
type sighting struct {
	word  uint64
	since time.Time
}

// NewWatch returns a watch. It ends nothing before Run.
func NewWatch() *Watch { return &Watch{seen: map[*Instance]sighting{}} }

// Run watches until the context is done, and returns nil.
func (w *Watch) Run(ctx context.Context) error {
	timer := time.NewTimer(watchTick)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-timer.C:
			if w.look(now) {
				timer.Reset(watchTick)
			} else {
				timer.Reset(watchIdle)
			}
		}
	}
}

// look ends what has taken too long, and reports whether it saw a call.
func (w *Watch) look(now time.Time) bool {
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
			w.seen[i] = sighting{word, now}
		case now.Sub(s.since) >= i.wall(byte(word)):
			if i.running.CompareAndSwap(word, word|killed) {
				i.kill.Set(1)
			}
		}
	}
	return calls
}

func (w *Watch) add(i *Instance) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[i] = sighting{}
}

func (w *Watch) remove(i *Instance) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.seen, i)
}
