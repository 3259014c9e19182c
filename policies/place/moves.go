package place

import (
	"cmp"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// Move is a running request that costs less at another replica.
type Move struct {
	Resident int                // its index among the residents
	To       policies.ReplicaID // where it costs least
	Gain     int64              // how much less, in nanoseconds per token (View.Price)
}

const (
	// maxMovers bounds the requests that one search prices, and maxBuyers the peers at which it does.
	maxMovers = 8
	maxBuyers = 16
	// minGain is the least gain of a move, as a share of the fixed time of an iteration, and minGainShare as a share of
	// what the request costs where it runs: expected outputs are guesses.
	minGain      = 0.1
	minGainShare = 0.1
)

// MoveQuery asks for the move that saves most.
type MoveQuery struct {
	// Residents are what this replica has, as of SetOwnState.
	Residents []Resident
	// Movable are indices of those that may move. FindMove changes their order.
	Movable []int
	// Takes is how long so many tokens are copied to a peer; nil: no time.
	Takes func(policies.ReplicaID, policies.Tokens) policies.Micros
	// CanRunOn reports whether a peer can run a resident; nil: each can run all.
	CanRunOn func(resident int, at policies.ReplicaID) bool
}

// FindMove prices at most maxMovers random movable requests here and at peers, and returns the move that saves
// most; false if none saves enough. From then on it counts the request at that peer. A request never moves to a
// stage that is shorter than it is, nor to a peer whose load is not known. Only requests of one sequence move.
func (b *Peers) FindMove(now policies.Micros, q MoveQuery) (best Move, ok bool) {
	if b.cfg.Engine == nil || len(q.Movable) == 0 || b.own < 0 {
		return best, false
	}
	s := &b.search
	s.describe(&b.outputs, q.Residents)
	base, _ := s.finish(&b.view.engine, &b.ownState, now, -1)
	best.Gain = int64(minGain * b.cfg.Engine.Cost.D0 * 1e9)
	var sent Waiting
	for n := range min(len(q.Movable), maxMovers) {
		at := n + b.rng.IntN(len(q.Movable)-n)
		q.Movable[n], q.Movable[at] = q.Movable[at], q.Movable[n]
		i := q.Movable[n]
		one, runs := s.find(i)
		if !runs || one.Count != 1 {
			continue
		}
		rest, congestion := s.finish(&b.view.engine, &b.ownState, now, i)
		saved := int64((base - rest) * 1e9 * congestion)
		least := max(best.Gain, int64(minGainShare*float64(saved)))
		if saved <= least {
			continue
		}
		w := Waiting{Length: one.Length, Output: one.Remaining, Weight: one.Weight}
		if !b.cfg.Reprompt {
			w.Cached, w.Copied = one.Length-1, one.Length-1
		}
		if to, price := b.findBuyer(now, i, &w, &q); to != "" && saved-price > least {
			best, ok, sent = Move{i, to, saved - price}, true, w
		}
	}
	if !ok {
		return Move{}, false
	}
	b.peers[best.To].view.Send(now, sent)
	return best, true
}

// findBuyer returns the one of at most maxBuyers peers at which a request costs least, and the price; "" if none may
// have it. It sets w.Ready to when the request can start there.
func (b *Peers) findBuyer(now policies.Micros, resident int, w *Waiting, q *MoveQuery) (to policies.ReplicaID, least int64) {
	examined, ready := 0, now
	for k := b.plan.StageOf(w.Length); k < len(b.stages); k++ {
		all := b.stages[k]
		if len(all) == 0 {
			continue
		}
		start := b.rng.IntN(len(all))
		for i := 0; i < len(all) && examined < maxBuyers; i++ {
			e := all[(start+i)%len(all)]
			if !b.open(now, e) || !b.fresh(now, e) || q.CanRunOn != nil && !q.CanRunOn(resident, e.id) {
				continue
			}
			examined++
			if w.Ready = now; q.Takes != nil {
				w.Ready += q.Takes(e.id, w.Length)
			}
			if price := e.view.PriceMove(now, *w, &b.pricing); to == "" || price < least {
				to, least, ready = e.id, price, w.Ready
			}
		}
	}
	w.Ready = ready
	return to, least
}

// moveSearch is the scratch memory of FindMove.
type moveSearch struct {
	running []residentGroup // in the order of their ends
	waiting []Waiting
	model   Model
}

// residentGroup is a resident that runs.
type residentGroup struct {
	Running
	resident int
}

// describe sets the residents, without those that leave.
func (s *moveSearch) describe(o *Outputs, residents []Resident) {
	s.running, s.waiting = s.running[:0], s.waiting[:0]
	for i := range residents {
		r := &residents[i]
		switch {
		case r.Leaving:
		case r.runs():
			s.running = append(s.running, residentGroup{r.describeRunning(o), i})
		default:
			s.waiting = append(s.waiting, r.describeWaiting(o))
		}
	}
	slices.SortFunc(s.running, func(a, b residentGroup) int {
		return cmp.Or(cmp.Compare(a.Remaining, b.Remaining), cmp.Compare(a.resident, b.resident))
	})
}

// find returns a resident's description; false if it does not run.
func (s *moveSearch) find(resident int) (Running, bool) {
	for i := range s.running {
		if s.running[i].resident == resident {
			return s.running[i].Running, true
		}
	}
	return Running{}, false
}

// finish returns what the ends of all residents but one cost from now on, and the congestion that this one meets.
func (s *moveSearch) finish(e *Engine, own *State, now policies.Micros, without int) (cost, congestion float64) {
	s.model.Reset(e, own.At)
	held, rest := 0.0, 0.0 // tokens of all, and of all but one: prefixes are taken to be shared alike
	for i := range s.running {
		one := &s.running[i]
		held += float64(one.Length)
		if one.resident != without {
			rest += float64(one.Length)
			s.model.AddRunning(one.Running)
		}
	}
	for i := range s.waiting {
		s.model.AddWaiting(s.waiting[i])
	}
	if own.Used > 0 && held > 0 {
		s.model.SetUsed(policies.Tokens(float64(own.Used) * rest / held))
	}
	s.model.Advance(now)
	congestion = s.model.congestion(held - rest)
	return s.model.Finish(), congestion
}
