package swap

import (
	"math/rand/v2"
	"sync/atomic"

	"github.com/cascadeinfer/cascade/wasm/promotion"
)

// A stripe counts the calls of a part of the callers: the low bits those in
// progress, the others all that were begun. It has a cache line pair of its own.
type stripe struct {
	word atomic.Uint64
	_    [120]byte
}

const (
	inFlightBits = 24
	inFlight     = 1<<inFlightBits - 1
	begin        = 1<<inFlightBits + 1
	end          = ^uint64(0) // −1
	abandon      = ^uint64(begin - 1)
)

// loaded is a generation that is compiled.
type loaded[P any] struct {
	generation promotion.Generation
	module     Module[P]
	judged     struct{ compared, differ, worse atomic.Uint64 } // in this step of the canary
	stripes    []stripe
}

// calls is how many were begun.
func (l *loaded[P]) calls() uint64 {
	n := uint64(0)
	for i := range l.stripes {
		n += l.stripes[i].word.Load() >> inFlightBits
	}
	return n
}

// idle reports whether no call is in the module. Once it is no longer routed to,
// a stripe that was seen without calls can only be entered by callers who then
// find out and leave: each stripe has to be seen so once.
func (l *loaded[P]) idle() bool {
	for i := range l.stripes {
		if l.stripes[i].word.Load()&inFlight != 0 {
			return false
		}
	}
	return true
}

// route is what Enter reads: a promotion.Route with what it names. It does not change.
type route[P any] struct {
	promotion.Route
	active, candidate *loaded[P] // nil for the native policy
}

func (r *route[P]) of(g promotion.Generation) *loaded[P] {
	switch {
	case r.candidate != nil && g == r.Candidate:
		return r.candidate
	default:
		return r.active
	}
}

// Lease is the right to call a policy until Leave.
type Lease[P any] struct {
	Policy     P
	Generation promotion.Generation // promotion.Native for the native policy
	stripe     *stripe
}

// Leave ends the lease. It is called once, when the call has returned.
func (l Lease[P]) Leave() {
	if l.stripe != nil {
		l.stripe.word.Add(end)
	}
}

// Enter returns the policy for a request, by the hash of its name (promotion.Hash). It
// takes no lock and does not allocate.
func (s *Slot[P]) Enter(request uint64) Lease[P] {
	for {
		r := s.route.Load()
		if l, ok := s.lease(r, r.of(r.Of(request))); ok {
			return l
		}
	}
}

// EnterActive returns the active policy, unless a candidate decides for some
// requests: then it is for Enter to say which policy a request gets. It saves the
// hash of the request for nearly all calls.
func (s *Slot[P]) EnterActive() (Lease[P], bool) {
	for {
		r := s.route.Load()
		if r.candidate != nil {
			return Lease[P]{}, false
		}
		if l, ok := s.lease(r, r.active); ok {
			return l, true
		}
	}
}

// EnterScope returns the policy for a decision about a scope.
func (s *Slot[P]) EnterScope(scope string) Lease[P] {
	for {
		r := s.route.Load()
		if l, ok := s.lease(r, r.of(r.OfScope(scope))); ok {
			return l
		}
	}
}

// lease counts a call in and then looks whether the route is still the one that
// it was found by. If so, who takes the module out of the route sees the call.
func (s *Slot[P]) lease(r *route[P], l *loaded[P]) (Lease[P], bool) {
	if l == nil {
		return Lease[P]{Policy: s.config.Native}, true
	}
	stripe := &l.stripes[0]
	if n := uint32(len(l.stripes)); n > 1 {
		stripe = &l.stripes[rand.Uint32N(n)]
	}
	stripe.word.Add(begin)
	if s.route.Load() != r {
		stripe.word.Add(abandon)
		return Lease[P]{}, false
	}
	return Lease[P]{l.module.Policy, l.generation, stripe}, true
}
