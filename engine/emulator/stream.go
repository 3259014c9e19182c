package emulator

import (
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
)

// stream carries a request's tokens from the loop to its handler. The loop
// never blocks on it: tokens the handler has not taken yet are kept, four
// bytes each and at most max_tokens of them, and are taken together.
type stream struct {
	// Fixed before submit.
	engine   *Engine
	sequence *batch.Sequence
	arrived  time.Time
	prompt   int           // how many ids the sequence came with
	tail     []model.Token // of a sequence that was begun elsewhere: the last ids that it came with
	notify   notify

	ready chan struct{} // capacity 1

	// Guarded by the engine's mu.
	leg   string
	named *batch.Sequence // what the leg is; nil until there is a sequence

	mu      sync.Mutex
	pending []model.Token
	finish  batch.Finish
	cached  int

	// Owned by the loop.
	last time.Time // when the token before was generated; zero before the first
}

// notify says when a handler wants to be woken.
type notify int

const (
	perToken notify = iota
	atTheEnd        // nobody sees single tokens: one wake-up per request
)

var _ batch.Receiver = (*stream)(nil)

// Receive takes a token from the loop, or the word that there are no more.
func (st *stream) Receive(ev batch.Event) {
	if ev.Finish == batch.Dropped {
		st.mu.Lock()
		st.finish = ev.Finish
		st.mu.Unlock()
		st.wake()
		return
	}
	m, now := st.engine.metrics, st.engine.now
	if st.last.IsZero() {
		m.firstToken.Observe(now.Sub(st.arrived).Seconds())
	} else {
		m.interToken.Observe(now.Sub(st.last).Seconds())
	}
	st.last = now
	st.mu.Lock()
	if st.finish == batch.Dropped { // while the iteration of this token passed
		st.mu.Unlock()
		return
	}
	st.pending = append(st.pending, ev.Token)
	st.finish, st.cached = ev.Finish, ev.Cached
	st.mu.Unlock()
	if ev.Finish != batch.Unfinished {
		m.ended(now.Sub(st.arrived), ev)
	}
	if ev.Finish != batch.Unfinished || st.notify == perToken {
		st.wake()
	}
}

// wake lets the handler see what came.
func (st *stream) wake() {
	select {
	case st.ready <- struct{}{}:
	default:
	}
}

// take returns the tokens that came since the last call, in a slice that is
// valid until the next one, and whether they are the last.
func (st *stream) take(into []model.Token) (tokens []model.Token, finish batch.Finish, cached int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	tokens = st.pending
	st.pending = into[:0]
	return tokens, st.finish, st.cached
}
