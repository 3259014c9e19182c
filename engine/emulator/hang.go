package emulator

import (
	"context"

	"github.com/cascadeinfer/cascade/engine/internal/batch"
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

// Resume ends what Hang and FillKV began; the iteration in progress ends at once.
func (e *Engine) Resume() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.hung != nil {
		close(e.hung)
		e.hung = nil
	}
	if e.phase == serving {
		e.calls = append(e.calls, &call{ctx: context.Background(), run: (*batch.Scheduler).EndFull, done: make(chan struct{})})
		e.poke()
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
