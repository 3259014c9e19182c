package stream

import (
	"context"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

const (
	rescueAttempts = 3
	rescueLook     = 20 * time.Millisecond // between two looks for the own engine to be back
)

// rescue finds another leg for a stream whose leg was lost, from the ids that
// the client has. It is the pump's, and returns false when the stream must end.
// True means that the stream has changed.
func (s *Stream) rescue(lost Leg, cause error) bool {
	f := s.front
	if f.cfg.Rescuer == nil || s.doomed {
		return false
	}
	s.mu.Lock()
	switch {
	case s.cut != nil:
		s.mu.Unlock()
		return true // a move came first: it may bring a leg
	case s.leg != lost || s.ended || s.finished || s.prompt == 0 || s.ctx.Err() != nil ||
		policies.Movable(s.requestLocked()) != policies.MayMove || s.resume.Left(len(s.ids)-s.prompt) == 0:
		s.mu.Unlock()
		return false
	}
	s.rescuing = true
	s.backLocked()
	tried := []policies.ReplicaID{s.holder}
	s.mu.Unlock()
	if tried[0] == f.cfg.Replica {
		f.doubt()
	}
	looked := f.looks.Load()
	f.log.Warn("a stream lost its engine; it is looked for another", "stream", s.id, "holder", tried[0], "error", cause)
	ok := false
	for n := 0; n < rescueAttempts && !ok; n++ {
		to, found := s.refuge(tried, looked)
		if !found {
			break
		}
		looked = f.looks.Load()
		err := s.attempt(to)
		if ok = err == nil; !ok {
			tried = append(tried, f.named(to))
			f.log.Warn("a stream is not rescued at a replica", "stream", s.id, "at", f.named(to), "error", err)
		}
	}
	s.mu.Lock()
	s.rescuing = false
	s.mu.Unlock()
	return ok
}

// refuge names where to go on: as the Rescuer says, else at the own engine once
// it has shown that it lives. looked is how often it had when it last failed.
func (s *Stream) refuge(tried []policies.ReplicaID, looked uint64) (Target, bool) {
	f := s.front
	if to, ok := f.cfg.Rescuer.Rescue(s.Request(), tried); ok {
		return f.known(to), true
	}
	tick := time.NewTicker(rescueLook)
	defer tick.Stop()
	for end := time.Now().Add(f.cfg.RescueTimeout); time.Now().Before(end); {
		if f.ready.Load() && f.looks.Load() > looked {
			return Target{}, true
		}
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return Target{}, false
		}
	}
	return Target{}, false
}

// attempt tries to go on at one replica.
func (s *Stream) attempt(to Target) error {
	f := s.front
	s.mu.Lock()
	s.epoch++
	epoch, ids, prompt := s.epoch, s.ids[:len(s.ids):len(s.ids)], s.prompt
	body := s.resume.Prompted
	if !s.clean {
		body = s.resume.Begun
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.ctx, f.cfg.RescueTimeout)
	defer cancel()
	o := s.order(to, epoch, prompt, len(ids)-prompt)
	o.body = &payload{bytes: body(ids, len(ids)-prompt)}
	leg, first, err := s.open(ctx, o, len(ids))
	if err != nil {
		return err
	}
	s.mu.Lock()
	former := s.replaceLocked(leg, first, f.named(to))
	s.mu.Unlock()
	former(-1)
	return nil
}
