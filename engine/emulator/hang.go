package emulator

import (
	"context"
	"net/http"
)

// Hang stops the replica's core in the middle of its iteration, as a stuck GPU kernel or
// collective does, until Resume is called. It emulates vLLM: the HTTP API goes on, takes requests
// and answers /health with 200, while no token comes and the core's metrics stand still.
func (e *Engine) Hang() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.hung == nil {
		e.hung = make(chan struct{})
	}
}

// Resume ends what Hang began; the iteration in progress ends at once.
func (e *Engine) Resume() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.hung != nil {
		close(e.hung)
		e.hung = nil
	}
}

// waitWhileHung returns when the core is not hung, or false when ctx ends.
func (e *Engine) waitWhileHung(ctx context.Context) bool {
	for {
		e.mu.Lock()
		hung := e.hung
		e.mu.Unlock()
		if hung == nil {
			return ctx.Err() == nil
		}
		select {
		case <-hung:
		case <-ctx.Done():
			return false
		}
	}
}

// faultRoutes let the tests and demos of other processes hang a replica. A front end serves
// neither path to clients.
func (e *Engine) faultRoutes(handle func(method, path string, h http.HandlerFunc)) {
	handle("POST", "/emulator/hang", func(http.ResponseWriter, *http.Request) { e.Hang() })
	handle("POST", "/emulator/resume", func(http.ResponseWriter, *http.Request) { e.Resume() })
}
