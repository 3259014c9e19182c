package frontend

import "sync/atomic"

// checksPerTimeout is how often a callWatch is checked within the timeout.
const checksPerTimeout = 4

// callWatch detects a call that does not return. A call costs two atomic additions,
// and neither a timer nor a clock reading: a timer of the user checks from time to
// time whether the same call still waits.
type callWatch struct {
	calls atomic.Uint64 // odd while a call waits

	// Used by check only.
	last    uint64 // calls at the last check
	waiting int
}

// begin is called before the call, and end after it.
func (w *callWatch) begin() { w.calls.Add(1) }
func (w *callWatch) end()   { w.calls.Add(1) }

// inCall reports whether a call waits now.
func (w *callWatch) inCall() bool { return w.calls.Load()%2 == 1 }

// check returns how many checks in a row, this one included, have found the same
// call waiting.
func (w *callWatch) check() int {
	switch now := w.calls.Load(); {
	case now%2 == 0:
		w.waiting = 0
	case now != w.last || w.waiting == 0:
		w.last, w.waiting = now, 1
	default:
		w.waiting++
	}
	return w.waiting
}
