package frontend

import (
	"context"
	"errors"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

const (
	rescueAttempts = 3
	rescueLook     = 20 * time.Millisecond // between two looks for the own engine to be back
	// rescues is how many engines a stream may lose before it has got rescueTokens
	// tokens further: a request that kills every engine must not get all of them.
	rescues      = 3
	rescueTokens = 64
)

// Rescue is what became of a stream that had lost its engine.
type Rescue struct {
	Stream   string
	Epoch    policies.Epoch     // of the last attempt; with Stream it names the rescue
	From, To policies.ReplicaID // To: where it was tried last, "" for nowhere
	Length   policies.Tokens    // of the stream when it lost its engine
	Start    time.Time          // when the front noticed
	Duration time.Duration      // until the first token from elsewhere, or until it was given up
	Err      error              // why the stream had to end; nil: it goes on
}

// errNoRefuge says that there was nowhere to try.
var errNoRefuge = errors.New("no replica could take it")

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
		policies.Movable(s.requestLocked()) != policies.NotPinned || s.resume.Left(len(s.ids)-s.prompt) == 0:
		s.mu.Unlock()
		return false
	case len(s.ids)-s.lastLoss >= rescueTokens:
		s.losses = 0
	}
	if s.losses++; s.losses > rescues {
		s.mu.Unlock()
		f.log.Error("a stream loses one engine after the other; it ends", "stream", s.id, "error", cause)
		return false
	}
	s.rescuing, s.lastLoss = true, len(s.ids)
	s.backLocked()
	tried := []policies.ReplicaID{s.holder}
	told := Rescue{Stream: s.id, From: s.holder, Length: policies.Tokens(len(s.ids)), Start: time.Now(), Err: errNoRefuge}
	s.mu.Unlock()
	if tried[0] == f.cfg.Replica {
		f.probeNow()
	}
	looked := f.probesPassed.Load()
	f.log.Warn("a stream lost its engine; another one is looked for", "stream", s.id, "holder", tried[0], "error", cause)
	ok := false
	for n := 0; n < rescueAttempts && !ok; n++ {
		to, found := s.refuge(tried, looked)
		if !found {
			break
		}
		looked = f.probesPassed.Load()
		told.To, told.Err = f.replicaOf(to), s.attempt(to)
		if ok = told.Err == nil; !ok {
			tried = append(tried, told.To)
			f.log.Warn("a stream is not rescued at a replica", "stream", s.id, "at", told.To, "error", told.Err)
		}
	}
	s.mu.Lock()
	s.rescuing = false
	told.Epoch = s.epoch
	s.mu.Unlock()
	if !ok && s.ctx.Err() != nil {
		told.Err = context.Cause(s.ctx) // the client did not wait for it
	}
	if told.Duration = time.Since(told.Start); f.cfg.OnRescue != nil {
		f.cfg.OnRescue(told)
	}
	return ok
}

// refuge names where to go on: as the Rescuer says, else at the own engine once
// it has shown that it lives. looked is how often it had when it last failed.
func (s *Stream) refuge(tried []policies.ReplicaID, looked uint64) (Target, bool) {
	f := s.front
	if to, ok := f.cfg.Rescuer.Rescue(s.Request(), tried); ok {
		return f.normalize(to), true
	}
	tick := time.NewTicker(rescueLook)
	defer tick.Stop()
	for end := time.Now().Add(f.cfg.RescueTimeout); time.Now().Before(end); {
		if f.ready.Load() && f.probesPassed.Load() > looked {
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
	former := s.replaceLocked(leg, first, f.replicaOf(to))
	s.mu.Unlock()
	former(-1)
	return nil
}
