package emulator

import (
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/engine/internal/kvport"
)

// stream carries a request's tokens from the loop to its handler. The loop never blocks on it:
// tokens that the handler has not taken yet are kept, four bytes each and at most max_tokens
// of them, and are taken together.
type stream struct {
	// Fixed before submit.
	engine    *Engine
	sequence  *batch.Sequence
	arrived   time.Time
	prompt    int            // number of ids of the sequence's prompt
	tail      []model.Token  // last ids of a reservation's output, whose text continues
	remote    *kvport.Params // where the prompt's KV is; nil: it is computed
	faults    *Faults
	handoffID string // names the blocks that are kept after the end; "": none
	atEnd     bool   // nothing reads single tokens: the handler is woken once

	ready chan struct{} // capacity 1

	// Guarded by the engine's mu.
	leg   string
	named *batch.Sequence // sequence of the leg; nil until there is one

	mu      sync.Mutex
	pending []model.Token
	finish  batch.Finish
	cached  int
	handoff *kvport.Params // set with finish

	// Owned by the loop.
	last     time.Time     // when the previous token was generated; zero before the first
	stopPull func()        // nil: no pull has begun
	held     []model.Token // of the next chunk, with Faults only
	due      int           // size of that chunk; 0: it has no token
}

var (
	_ batch.Receiver = (*stream)(nil)
	_ batch.Flusher  = (*stream)(nil)
)

// Receive takes a token, or the end of the sequence, from the loop.
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
	if ev.Finish == batch.Unfinished && st.hold(ev) {
		return
	}
	st.mu.Lock()
	if st.finish == batch.Dropped { // during the iteration of this token
		st.mu.Unlock()
		return
	}
	if ev.Finish == batch.AtLength && st.handoffID != "" {
		st.handoff = st.engine.transfer.grant(st)
	}
	st.pending = append(append(st.pending, st.held...), ev.Token)
	st.held = st.held[:0]
	st.finish, st.cached = ev.Finish, ev.Cached
	st.mu.Unlock()
	if ev.Finish != batch.Unfinished {
		m.ended(now.Sub(st.arrived), ev)
	}
	if ev.Finish != batch.Unfinished || !st.atEnd {
		st.wake()
	}
}

// hold keeps a token for a later one's chunk. It returns false when the chunk is due.
func (st *stream) hold(ev batch.Event) bool {
	if st.atEnd || st.faults.StreamInterval <= 1 && st.faults.DraftTokens == 0 {
		return false
	}
	if st.due == 0 {
		st.due = st.faults.chunkSize(ev.Sequence.Output() == 1, ev.Token)
	}
	if len(st.held)+1 < st.due {
		st.held = append(st.held, ev.Token)
		return true
	}
	st.due = 0
	return false
}

// Flush passes on the tokens that are kept for the next chunk: a front end waits for them before
// it moves a frozen request.
func (st *stream) Flush() {
	if len(st.held) == 0 {
		return
	}
	st.mu.Lock()
	st.pending = append(st.pending, st.held...)
	st.mu.Unlock()
	st.held, st.due = st.held[:0], 0
	st.wake()
}

// handoffParams describes the blocks that are kept after the end of a stream; nil: none.
func (st *stream) handoffParams() *kvport.Params {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.handoff
}

// wake wakes the handler.
func (st *stream) wake() {
	select {
	case st.ready <- struct{}{}:
	default:
	}
}

// take returns the tokens since the last call, in a slice that is valid until the next one, and
// whether they are the last.
func (st *stream) take(into []model.Token) (tokens []model.Token, finish batch.Finish, cached int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	tokens = st.pending
	st.pending = into[:0]
	return tokens, st.finish, st.cached
}
