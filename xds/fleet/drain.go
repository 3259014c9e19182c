package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Why a drain, or its end, cannot be asked for.
var (
	ErrUnknown  = errors.New("no such replica is configured")
	ErrLast     = errors.New("no other replica of its model could serve: bring one up, or undrain one, first")
	ErrFile     = errors.New("the fleet file drains it: take its drain mark out there")
	ErrNotSaved = errors.New("the plan store did not take it; nothing has changed, try again") // wrapped with the reason
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

// obey steps an order and says what became of it. Where another control plane
// wrote at the same time, the order is given again on top of what that wrote.
// Called by the loop alone.
func (f *Fleet) obey(ctx context.Context, ev Event) error {
	var err error
	for range orderTries {
		if err := f.state.Permits(ev); err != nil {
			return err
		}
		err = f.step(ctx, time.Now(), ev)
		f.latest.Store(f.state.Snapshot(time.Now()))
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, store.ErrConflict) || !f.await(ctx):
			return fmt.Errorf("%w: %w", ErrNotSaved, err)
		}
	}
	return fmt.Errorf("%w: %w", ErrNotSaved, err)
}

// await takes in the next update of the store; false when none comes.
func (f *Fleet) await(ctx context.Context) bool {
	timeout := time.NewTimer(newsTimeout)
	defer timeout.Stop()
	for before := f.version; f.version == before; {
		select {
		case u, ok := <-f.news:
			if !ok {
				f.news = nil
				return false
			}
			f.update(ctx, u)
		case <-timeout.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// Permits says why an order cannot be obeyed, or nil; any other event is. At
// least one replica of each model that takes requests stays.
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
			if o != r && o.Model == r.Model && s.serves(o) {
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
	case Pin, Unpin, Rollback:
		return s.permitsPlan(ev)
	case Policies:
		_, err := ev.Change(s.object.Slots)
		return err
	}
	return nil
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
	s.unsaved, s.ordered, s.untidy = false, false, false
	drained := make(map[policies.ReplicaID]bool, len(s.object.Drained))
	for _, id := range s.object.Drained {
		drained[id] = true
		if r := s.byID[id]; s.begun && (r == nil || r.gone) {
			s.untidy = true
		}
	}
	for _, r := range s.replicas {
		if asked := !r.gone && drained[r.ID]; asked != r.asked {
			r.asked, s.dirty = asked, true
		}
		s.refresh(now, r)
	}
	for _, m := range s.models {
		m.order = nil
	}
	s.slots = nil
	s.refuse(nil)
}

// marks lists the replicas that are to be stored as drained, sorted. Only who
// plans gives marks up: the others may have a configuration that is older.
func (s *State) marks(now time.Time) []policies.ReplicaID {
	var ids []policies.ReplicaID
	for _, r := range s.replicas {
		if r.asked {
			ids = append(ids, r.ID)
		}
	}
	if !s.plans(now) {
		for _, id := range s.object.Drained {
			if r := s.byID[id]; r == nil || r.gone {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	return ids
}
