package httpserver

import (
	"cmp"
	"sync/atomic"
)

// A body must bring Window's worth of its least rate, or end, within every Window, in
// nanoseconds: one that stalls occupies its memory for one Window at most. At the default,
// 32 KiB in 10 s, a client on a slow mobile connection still gets through.
const (
	Window      = 10_000_000_000
	WindowBytes = 32 << 10
)

// BytesAt returns what a body must bring in every Window at a rate in bytes per second; 0
// stands for the default.
func BytesAt(rate int64) int64 {
	if rate <= 0 {
		return WindowBytes
	}
	return rate * (Window / 1_000_000_000)
}

// Budget bounds the memory of request bodies in one process. It is safe for concurrent
// use.
type Budget struct {
	limit int64
	held  atomic.Int64
}

// NewBudget returns a budget of limit bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// Held returns how many bytes all shares hold together.
func (b *Budget) Held() int64 { return b.held.Load() }

// Share returns an empty share of the budget, for one request.
func (b *Budget) Share() Share { return Share{budget: b} }

// Share is the part of a Budget that one request holds. It is not safe for concurrent
// use and must not be copied once it holds bytes.
type Share struct {
	budget *Budget
	held   int64
}

// Resize makes the share hold n bytes. It reports false, and changes nothing, if the
// budget has no room; a share can always shrink.
func (s *Share) Resize(n int64) bool {
	for {
		held := s.budget.held.Load()
		sum := held - s.held + n
		if n > s.held && sum > s.budget.limit {
			return false
		}
		if s.budget.held.CompareAndSwap(held, sum) {
			break
		}
	}
	s.held = n
	return true
}

// Release gives everything back. It may be called more than once.
func (s *Share) Release() {
	if s.held > 0 {
		s.Resize(0)
	}
}

// Pace is the pace at which one body arrives. Times are nanoseconds since the body
// began.
type Pace struct {
	// Least is how many bytes every window must bring; 0 means WindowBytes.
	Least int64

	window int64 // when the present window began
	bytes  int64 // of it
}

// Arrived records that n bytes have arrived, and returns until when the body must bring
// further ones. changed is true if that is later than before; before the first call it is
// Window.
func (p *Pace) Arrived(n int, now int64) (deadline int64, changed bool) {
	p.bytes += int64(n)
	if changed = p.bytes >= cmp.Or(p.Least, WindowBytes); changed {
		p.window, p.bytes = now, 0
	}
	return p.window + Window, changed
}
