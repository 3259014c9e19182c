package frontend

import (
	"context"
	"net/http"
	"sync"
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

// freeze stops a leg between two tokens and returns what it has.
func (e *engine) freeze(leg string) (reservation, bool) {
	e.mu.Lock()
	r := e.runs[leg]
	e.mu.Unlock()
	if r == nil {
		return reservation{}, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.frozen == nil {
		r.frozen = make(chan struct{})
	}
	return reservation{r.ids, r.origin}, len(r.ids) > r.origin
}

// length returns how many ids a leg has, 0 if it does not run.
func (e *engine) length(leg string) int {
	e.mu.Lock()
	r := e.runs[leg]
	e.mu.Unlock()
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ids)
}

func (e *engine) thaw(leg string) {
	e.mu.Lock()
	r := e.runs[leg]
	e.mu.Unlock()
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.frozen != nil {
		close(r.frozen)
		r.frozen = nil
	}
}

// killAll ends all streamed answers as the death of the process does.
func (e *engine) killAll() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.runs {
		r.kill()
	}
}

// kill ends one of them.
func (e *engine) kill(leg string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := e.runs[leg]; r != nil {
		r.kill()
	}
}

func (r *run) kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dead = true
	if r.frozen != nil {
		close(r.frozen)
		r.frozen = nil
	}
}

func (e *engine) reserve(move string, r reservation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reserved[move] = r
}
