package frontend

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/internal/httpserver"
)

const (
	maxAhead      = 4 << 20 // bytes of one answer that are kept for a reader that lags behind
	pieceOverhead = 64      // bytes of memory that a kept piece takes beside its text
	awayChecks    = 2       // checks in a row that find a reader away before its answer is read ahead
)

// errAnswerClosed is returned to the reader of a closed answer.
var errAnswerClosed = errors.New("the answer is closed")

// answerSource is an engine's answer. Its methods are called by one goroutine at a time.
type answerSource interface {
	// readPiece returns the next piece of the answer, which is valid until the next call. It may use the
	// memory of into. ahead is true if the goroutine that reads ahead calls, and false if the reader does.
	// The last piece may come with the error that ends the answer.
	readPiece(into []byte, ahead bool) ([]byte, error)
	// detach keeps the latest piece of readPiece valid, and returns memory for the pieces after it.
	detach() []byte
	// endAhead is called when readPiece has returned an error to the goroutine that reads ahead.
	endAhead()
}

// readState says who reads an engine's answer.
type readState uint8

const (
	notRead       readState = iota // none: the reader is elsewhere, or the answer has ended
	readByReader                   // the reader
	readInAdvance                  // a goroutine, while the reader is elsewhere
	readForReader                  // that goroutine, and the reader waits for its next piece
	answerClosed                   // none, for ever
)

// String names the state.
func (s readState) String() string {
	return [...]string{"not read", "read by its reader", "read ahead", "awaited", "closed"}[s]
}

// readAhead passes an engine's answer to its reader, which writes it to a client. While the reader keeps
// up, it reads the engine itself, and nothing is copied. If it lags behind, a goroutine reads the engine
// at the engine's pace: the load of the engine, and the time between its tokens, must not depend on
// clients. The goroutine keeps the pieces in memory, within maxAhead and the server's budget for answers.
// When that is used up, the answer is unread: the goroutine waits for the reader, and the pace of the
// answer says nothing about the engine. The goroutine ends when the reader has caught up with it.
type readAhead struct {
	// Fixed.
	source answerSource
	call   *call
	local  *localLeg // whose answer it is; nil for none: nothing is read ahead

	reads callWatch // of readPiece
	watch idleWatch

	mu      sync.Mutex
	changed sync.Cond     // of pieces and state
	taken   chan struct{} // holds a token when memory may have become free; nil before anything is read ahead
	state   readState
	away    int              // checks in a row that found the reader elsewhere
	pieces  [][]byte         // kept for the reader, oldest first
	memory  httpserver.Share // the share of the server's budget that they take
	size    int64            // bytes of memory
	unread  time.Time        // since when the memory has been used up; zero: it is not
	err     error            // that ended the answer; nil: it goes on
}

func (a *readAhead) init(source answerSource, c *call, local *localLeg, idle time.Duration) {
	a.source, a.call, a.local = source, c, local
	a.changed.L = &a.mu
	a.watch.start(a, idle)
	if local != nil {
		a.memory = local.server.answers.Share()
		local.answer.Store(a)
	}
}

// next returns the next piece of the answer, which is valid until the next call. If direct is true, source
// has just read the piece, with into, and an error may come with it. Otherwise there is a piece or an error.
func (a *readAhead) next(into []byte) (piece []byte, direct bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.readsAhead() && len(a.pieces) == 0 {
		a.state = readForReader
		a.changed.Wait()
	}
	switch {
	case a.state == answerClosed && a.err == nil:
		return nil, false, errAnswerClosed
	case len(a.pieces) > 0:
		piece = a.pieces[0]
		a.pieces[0], a.pieces = nil, a.pieces[1:]
		a.size -= int64(len(piece)) + pieceOverhead
		a.memory.Resize(a.size)
		a.signalTaken()
		return piece, false, nil
	case a.err != nil:
		return nil, false, a.err
	}
	a.state = readByReader
	a.mu.Unlock()
	piece, err = a.readPiece(into, false)
	a.mu.Lock()
	if a.away = 0; a.state == readByReader {
		a.state = notRead
	}
	return piece, true, err
}

func (a *readAhead) readsAhead() bool { return a.state == readInAdvance || a.state == readForReader }

func (a *readAhead) readPiece(into []byte, ahead bool) ([]byte, error) {
	a.reads.begin()
	defer a.reads.end()
	return a.source.readPiece(into, ahead)
}

// check begins to read ahead if the reader has been away at the last checks.
func (a *readAhead) check(readers *sync.WaitGroup) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch a.away++; {
	case a.readsAhead():
		a.signalTaken() // the budget may have room again
	case a.state != notRead || a.err != nil:
		a.away = 0
	case a.away >= awayChecks:
		a.state, a.taken = readInAdvance, make(chan struct{}, 1)
		into := a.source.detach()
		readers.Go(func() { a.run(into) })
	}
}

// unreadBefore reports whether the answer has been unread since before a time.
func (a *readAhead) unreadBefore(at time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.unread.IsZero() && a.unread.Before(at)
}

// run reads the engine until the reader waits for the next piece.
func (a *readAhead) run(into []byte) {
	for {
		piece, err := a.readPiece(into, true)
		if err != nil {
			a.source.endAhead()
		}
		if !a.keep(piece, err) {
			return
		}
	}
}

// keep keeps a piece for the reader, once there is memory for it. It returns false if the goroutine must
// stop reading ahead.
func (a *readAhead) keep(piece []byte, err error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(piece) > 0 && a.state != answerClosed && !a.addMemory(int64(len(piece))+pieceOverhead) {
		if a.unread.IsZero() {
			a.unread = time.Now()
			a.local.work.StopTiming()
			a.local.server.unread.Add(1)
			defer a.local.server.unread.Add(-1)
		}
		a.mu.Unlock()
		select {
		case <-a.taken:
		case <-a.call.done:
			piece = nil // the next call of readPiece returns the reason
		}
		a.mu.Lock()
	}
	a.unread = time.Time{}
	if len(piece) > 0 && a.state != answerClosed {
		a.pieces = append(a.pieces, slices.Clone(piece))
	}
	a.err = err
	a.changed.Broadcast()
	if a.state == readForReader || a.state == readInAdvance && err != nil {
		a.state = notRead
	}
	return a.state == readInAdvance
}

// addMemory takes memory for n more bytes, and reports whether it could. A single piece always gets its
// memory, so that streams whose clients read go on when others have used up the budget.
func (a *readAhead) addMemory(n int64) bool {
	if len(a.pieces) > 0 && a.size+n > maxAhead || !a.memory.Resize(a.size+n) && len(a.pieces) > 0 {
		return false
	}
	a.size += n
	return true
}

// signalTaken wakes the goroutine that waits for memory.
func (a *readAhead) signalTaken() {
	select {
	case a.taken <- struct{}{}:
	default:
	}
}

// close frees the kept pieces. From then on next returns an error.
func (a *readAhead) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state, a.pieces, a.size = answerClosed, nil, 0
	a.watch.timer.Stop()
	if a.local != nil {
		a.memory.Release()
	}
	a.signalTaken()
	a.changed.Broadcast()
}

// idleWatch aborts the call of an answer whose engine sends nothing. Time for which the engine was not
// read does not count. A pause in the middle of a stream at the own engine ends it sooner, if another engine can go
// on with it and this one cannot have preempted the request; whether the engine makes progress at all is
// decided for all its requests together, by enginestate.Monitor.
type idleWatch struct {
	// Fixed.
	answer                 *readAhead
	interval               time.Duration
	idleChecks, hangChecks int // checks that may find it waiting, before the first token and after
	timer                  *time.Timer

	hasToken atomic.Bool
	hadToken bool // at the last check
}

func (w *idleWatch) start(a *readAhead, idle time.Duration) {
	hang := idle
	if a.local != nil { // else the replica that runs it judges its engine
		hang = min(hang, a.local.server.cfg.HangTimeout)
	}
	w.answer, w.interval = a, max(hang/checksPerTimeout, 1)
	w.idleChecks, w.hangChecks = int((idle+w.interval-1)/w.interval), int((hang+w.interval-1)/w.interval)
	a.mu.Lock()
	defer a.mu.Unlock()
	w.timer = time.AfterFunc(w.interval, w.check)
}

func (w *idleWatch) check() {
	a := w.answer
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state == answerClosed {
		return
	}
	// A first token that has come since the last check ends the wait that this one may still find.
	hadToken := w.hadToken
	w.hadToken = w.hasToken.Load()
	waiting := a.reads.check()
	switch {
	case waiting > w.idleChecks:
		a.call.abort(errIdle)
	case waiting > w.hangChecks && hadToken && a.local.rescuable() && !a.local.server.crowded.Load():
		a.local.server.givenUp.Add(1)
		a.call.abort(errHung)
	default:
		w.timer.Reset(w.interval)
	}
}

// checkReaders checks all answers, and begins to read ahead those whose readers lag behind.
func (srv *Server) checkReaders(readers *sync.WaitGroup) {
	for _, r := range srv.registeredLegs() {
		if answer := r.answer.Load(); answer != nil {
			answer.check(readers)
		}
	}
}

// endUnread ends legs that the engine has finished without the front end having read so: their answers were unread
// before a time at which the engine had no more than the given number of requests. It counts the legs with other
// answers as running, then the newest unread ones, and ends the rest.
func (srv *Server) endUnread(requests int, at time.Time) {
	var unread []*localLeg
	legs := srv.registeredLegs()
	for _, r := range legs {
		if answer := r.answer.Load(); answer != nil && answer.unreadBefore(at) {
			unread = append(unread, r)
		}
	}
	running := max(requests-(len(legs)-len(unread)), 0)
	slices.SortFunc(unread, func(a, b *localLeg) int { return b.since.Compare(a.since) })
	for _, r := range unread[min(running, len(unread)):] {
		r.unregister(false)
	}
}
