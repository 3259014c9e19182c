package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// Why a drain, or its end, cannot be asked for.
var (
	ErrUnknown  = errors.New("no such replica is configured")
	ErrLast     = errors.New("no other replica of its model could serve: bring one up, or undrain one, first")
	ErrFile     = errors.New("the fleet file drains it: take its drain mark out there")
	ErrNotSaved = errors.New("the plan store did not take it; nothing has changed, try again")
)

// Drain asks for a replica to be emptied: it leaves its stage at once, proxies
// see it as draining, its migrator is told, and a restart remembers it until
// Undrain or until the replica leaves the configuration. It returns when that
// is stored; asking twice is one drain. The error wraps ErrUnknown, ErrLast or
// ErrNotSaved, or is that of a fleet that stops.
func (f *Fleet) Drain(ctx context.Context, id policies.ReplicaID) error {
	return f.order(ctx, Drain{id})
}

// Undrain ends what Drain began: the replica takes part again. For a replica
// that is not drained it does nothing; the error wraps ErrUnknown, ErrFile for
// one that the configuration drains, or ErrNotSaved.
func (f *Fleet) Undrain(ctx context.Context, id policies.ReplicaID) error {
	return f.order(ctx, Undrain{id})
}

// order hands an operator's order to the loop and waits until it is stored.
func (f *Fleet) order(ctx context.Context, ev Event) error {
	reply := make(chan answer, 1)
	if err := f.send(ctx, message{ev, reply}); err != nil {
		return err
	}
	select {
	case a := <-reply:
		return a.err
	case <-f.done:
		return errStopped
	}
}

// obey steps an order and says what became of it. Called by the loop alone.
func (f *Fleet) obey(ctx context.Context, now time.Time, ev Event) error {
	if err := f.state.Permits(ev); err != nil {
		return err
	}
	f.step(ctx, now, ev)
	f.latest.Store(f.state.Snapshot(now))
	if !f.state.obeyed(ev) {
		return ErrNotSaved
	}
	return nil
}

// Permits says why a Drain or Undrain cannot be obeyed, or nil; any other
// event is. At least one replica of each model that takes requests stays.
func (s *State) Permits(ev Event) error {
	switch ev := ev.(type) {
	case Drain:
		r := s.byID[ev.Replica]
		switch {
		case r == nil || r.gone:
			return fmt.Errorf("replica %q: %w", ev.Replica, ErrUnknown)
		case r.asked || r.Draining:
			return nil // it is drained already
		}
		for _, o := range s.replicas {
			if o != r && o.Model == r.Model && o.ready() {
				return nil
			}
		}
		return fmt.Errorf("replica %q: %w", ev.Replica, ErrLast)
	case Undrain:
		r := s.byID[ev.Replica]
		switch {
		case r == nil || r.gone:
			return fmt.Errorf("replica %q: %w", ev.Replica, ErrUnknown)
		case r.Draining && !r.asked:
			return fmt.Errorf("replica %q: %w", ev.Replica, ErrFile)
		}
	}
	return nil
}

// obeyed says that an order which was permitted is in force.
func (s *State) obeyed(ev Event) bool {
	switch ev := ev.(type) {
	case Drain:
		return s.byID[ev.Replica].asked
	case Undrain:
		return !s.byID[ev.Replica].asked
	}
	return true
}

// mark notes an order. It comes into force when it is stored, with the plan
// that follows from it, and nothing is published before; Refused takes it back.
func (s *State) mark(now time.Time, ev Event, id policies.ReplicaID, asked bool) {
	r := s.byID[id]
	if s.Permits(ev) != nil || r.asked == asked {
		return
	}
	r.asked, s.unsaved, s.ordered = asked, true, true
	s.refresh(now, r)
}

// remark takes the marks from what is stored. Those of replicas that are not
// configured are given up with the next object: who comes back after it was
// taken out is a new replica.
func (s *State) remark(now time.Time) {
	s.unsaved, s.ordered = false, false
	for _, r := range s.replicas {
		r.asked = !r.gone && slices.Contains(s.drained, r.ID)
		s.refresh(now, r)
	}
	for _, id := range s.drained {
		if r := s.byID[id]; s.begun && (r == nil || r.gone) {
			s.unsaved = true
		}
	}
}

// marks lists the replicas that are to be stored as drained, sorted.
func (s *State) marks() []policies.ReplicaID {
	var ids []policies.ReplicaID
	for _, r := range s.replicas {
		if r.asked {
			ids = append(ids, r.ID)
		}
	}
	slices.Sort(ids)
	return ids
}
