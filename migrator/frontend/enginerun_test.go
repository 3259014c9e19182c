package frontend

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// run is a streamed answer in progress. Its lock is held while a token is
// generated.
type run struct {
	mu     sync.Mutex
	ids    []uint32
	origin int           // where the client's output begins
	frozen chan struct{} // closed by thaw; nil while it runs
	dead   bool          // its connection is to be cut
}

// reservation is what a live migration transfers: token ids, and where the
// client's output begins in them.
type reservation struct {
	ids    []uint32
	origin int
}

// lockRunning waits while the run is frozen and returns with its lock held, or
// false if its request has ended.
func (r *run) lockRunning(ctx context.Context) bool {
	for {
		r.mu.Lock()
		frozen := r.frozen
		dead := r.dead
		if frozen == nil && !dead && ctx.Err() == nil {
			return true
		}
		r.mu.Unlock()
		if dead {
			panic(http.ErrAbortHandler)
		}
		select {
		case <-frozen:
		case <-ctx.Done():
			return false
		}
	}
}

func (r *run) freeze() {
	if r.frozen == nil {
		r.frozen = make(chan struct{})
	}
}

func (r *run) thaw() {
	if r.frozen != nil {
		close(r.frozen)
		r.frozen = nil
	}
}

func (r *run) kill() {
	r.dead = true
	r.thaw()
}

// eachRun calls do, with the run's lock held, for the run of a leg, or for all runs if leg is "".
func (e *engine) eachRun(leg string, do func(*run)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, r := range e.runs {
		if leg == "" || name == leg {
			r.mu.Lock()
			do(r)
			r.mu.Unlock()
		}
	}
}

// freeze stops a leg between two tokens and returns what it has.
func (e *engine) freeze(leg string) (has reservation, ok bool) {
	e.eachRun(leg, func(r *run) {
		r.freeze()
		has, ok = reservation{r.ids, r.origin}, len(r.ids) > r.origin
	})
	return has, ok
}

// length returns how many ids a leg has, 0 if it does not run.
func (e *engine) length(leg string) (n int) {
	e.eachRun(leg, func(r *run) { n = len(r.ids) })
	return n
}

func (e *engine) thaw(leg string) { e.eachRun(leg, (*run).thaw) }

// kill ends a streamed answer as the death of the process does, and killAll all of them.
func (e *engine) kill(leg string) { e.eachRun(leg, (*run).kill) }
func (e *engine) killAll()        { e.eachRun("", (*run).kill) }

func (e *engine) reserve(move string, r reservation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reserved[move] = r
}

// clearReservations drops all reservations: the fake has no leases.
func (e *engine) clearReservations() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.reserved)
}

// hang stops the engine's core as a stuck GPU kernel does: no token comes any more, while
// /health answers 200 and requests are taken. The returned function revives it.
func (e *engine) hang() (revive func()) {
	stuck := make(chan struct{})
	e.set(func(_ int, r *http.Request) { await(r, stuck) }, nil)
	e.eachRun("", (*run).freeze)
	return func() {
		close(stuck)
		e.set(nil, nil)
	}
}

// slowLegs makes the legs whose name ends so take a second for each token.
func (e *engine) slowLegs(suffix string) {
	e.set(func(_ int, r *http.Request) {
		if strings.HasSuffix(r.Header.Get(LegHeader), suffix) {
			time.Sleep(time.Second)
		}
	}, nil)
}

// countSteps makes the engine answer /metrics with the counter of an engine's core, and all else with pass.
func (e *engine) countSteps(steps *atomic.Int64, pass http.HandlerFunc) {
	e.pass(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			fmt.Fprintf(w, "vllm:iteration_tokens_total_count %d\n", steps.Load())
			return
		}
		io.Copy(io.Discard, r.Body)
		pass(w, r)
	})
}
