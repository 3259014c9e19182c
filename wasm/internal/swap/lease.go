package swap

import (
	"math/rand/v2"
	"sync/atomic"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/promotion"
)

// A stripe counts the calls of a part of the callers: the low bits count those in
// progress, the others all that began. It has a pair of cache lines of its own.
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

// loaded is a compiled generation.
type loaded[P any] struct {
	generation lifecycle.Generation
	module     Module[P]
	compared   struct{ all, differ, worse atomic.Uint64 } // in this step of the canary
	stripes    []stripe
}

// calls returns how many calls have begun.
func (l *loaded[P]) calls() uint64 {
	n := uint64(0)
	for i := range l.stripes {
		n += l.stripes[i].word.Load() >> inFlightBits
	}
	return n
}

// idle reports whether no call is in progress in the module. Once it is not routed to
// any more, a stripe that was seen without calls can only be entered by callers that
// then notice and leave, so it is enough to see each stripe idle once.
func (l *loaded[P]) idle() bool {
	for i := range l.stripes {
		if l.stripes[i].word.Load()&inFlight != 0 {
			return false
		}
	}
	return true
}

// route is what Enter reads: a promotion.Route with its modules. It is immutable.
type route[P any] struct {
	promotion.Route
	active, candidate *loaded[P] // nil for the native policy
}

func (r *route[P]) module(g lifecycle.Generation) *loaded[P] {
	switch {
	case r.candidate != nil && g == r.Candidate:
		return r.candidate
	default:
		return r.active
	}
}

// Lease lets its holder call a policy until Leave.
type Lease[P any] struct {
	Policy     P
	Generation lifecycle.Generation // lifecycle.Native for the native policy
	stripe     *stripe
}

// Leave ends the lease. It is called once, when the call has returned.
func (l Lease[P]) Leave() {
	if l.stripe != nil {
		l.stripe.word.Add(end)
	}
}

// Enter returns the policy for a request, by the hash of its name
// (promotion.HashRequest). It takes no lock and does not allocate.
func (s *Slot[P]) Enter(request uint64) Lease[P] {
	for {
		r := s.route.Load()
		if l, ok := s.lease(r, r.module(r.ForRequest(request))); ok {
			return l
		}
	}
}

// EnterActive returns the active policy. While a candidate decides for some requests,
// it returns false, and the caller has to call Enter. Nearly all calls save the hash
// of the request that way.
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
		if l, ok := s.lease(r, r.module(r.ForScope(scope))); ok {
			return l
		}
	}
}

// lease counts a call of the module, and then checks that the route that led to it is
// still in force. If it is, whoever removes the module from the route sees the call.
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
