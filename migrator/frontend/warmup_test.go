package frontend

import (
	"errors"
	"net/http"
	"testing"
	"time"
)

// startWarmup starts a stream that is long enough for a warm-up and begins to
// migrate it to r1, where the warm-up does not end by itself.
func (f *fleet) startWarmup() (b runningStream, over <-chan error) {
	f.t.Helper()
	b = f.startStream(longHandoff)
	f.engines[1].set(func(_ int, r *http.Request) {
		if r.Header.Get(LegHeader) == "" {
			<-r.Context().Done()
		}
	}, nil)
	calls := f.engines[1].calls.Load()
	end := make(chan error, 1)
	go func() {
		_, err := f.migrateReprompt(f.t.Context(), b.id, 1)
		end <- err
	}()
	waitFor(f.t, func() bool { return f.engines[1].calls.Load() > calls })
	return b, end
}

// TestTargetLostDuringWarmup loses the target before the stream is frozen: the
// migration fails.
func TestTargetLostDuringWarmup(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		b, over := f.startWarmup()
		if got := f.servers[0].Holders(); len(got) != 1 || got[0] != "r1" {
			t.Errorf("the holders are %v, want the target among them", got)
		}
		f.servers[0].HandlePeerLoss("r1")
		if err := <-over; !errors.Is(err, errReplicaGone) {
			t.Errorf("the migration ends with %v", err)
		}
		if got := f.servers[0].Holders(); len(got) != 0 {
			t.Errorf("the holders are %v", got)
		}
		f.requireAnswer(b)
	})
}

// TestHolderLostDuringWarmup loses the holder while the target warms up: the
// stream is frozen and spliced at once, because its client waits.
func TestHolderLostDuringWarmup(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		b, over := f.startWarmup()
		leg := b.id + "#1"
		for clean := false; !clean; { // the text of a stream whose holder is lost must be aligned
			has, ok := f.engines[0].freeze(leg)
			if !ok {
				t.Fatal("the stream is over")
			}
			waitFor(t, func() bool {
				b.mu.Lock()
				defer b.mu.Unlock()
				ids, _ := b.machine.IDs()
				clean = b.machine.Aligned()
				return len(ids) == len(has.ids)
			})
			if !clean {
				f.engines[0].thaw(leg)
				time.Sleep(5 * time.Millisecond) // for the next token
			}
		}
		f.engines[0].kill(leg)
		if err := <-over; err != nil {
			t.Error(err)
		}
		f.requireAnswer(b)
	})
}
