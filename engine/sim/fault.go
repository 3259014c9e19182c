package sim

import (
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/engine/replay"
)

// FaultKind is what happens to a replica.
type FaultKind string

// The kinds of faults.
const (
	// Fail loses the replica with all its requests, whose clients see a cut; it comes back empty. Under
	// Cascade the clients of its front end see a cut.
	Fail FaultKind = "fail"
	// Drain sends the replica no further requests; it finishes those that it has, or sells them.
	Drain FaultKind = "drain"
	// Slow changes how fast the replica is, of which no profile says anything: a GPU is throttled, or its profile is
	// wrong.
	Slow FaultKind = "slow"
)

// Fault happens to one replica.
type Fault struct {
	Kind    FaultKind
	Replica int // from 0
	At      time.Duration
	Until   time.Duration // 0: until the end
	Speed   float64       // of a replica that is Slow: above 1 is faster than its profile
}

// faultPhase is one of the times at which a fault changes something. The index of a fault's event is
// that of the fault times faultPhases, plus the phase.
type faultPhase int

const (
	faultBegins faultPhase = iota
	faultNoticed
	faultEnds
	faultEndNoticed
	faultPhases = iota // how many there are
)

// changeSpeed handles one phase of a change of speed, which no proxy notices.
func (s *Sim) changeSpeed(index int, phase faultPhase) error {
	f := s.cfg.Faults[index]
	s.replicas[f.Replica].speed = 1
	if phase == faultBegins {
		s.replicas[f.Replica].speed = f.Speed
		if f.Until > 0 {
			s.queue.push(event{at: f.Until, kind: fault, index: int32(index*faultPhases + int(faultEnds))})
		}
	}
	return nil
}

// handleFault handles one phase of a fault. The proxies notice a drain and its end at once, a failure
// and its end after HealthDelay.
func (s *Sim) handleFault(index int, phase faultPhase) error {
	f := s.cfg.Faults[index]
	r := s.replicas[f.Replica]
	if f.Kind == Slow {
		return s.changeSpeed(index, phase)
	}
	after := func(d time.Duration, phase faultPhase) {
		s.queue.push(event{at: s.now + d, kind: fault, index: int32(index*faultPhases + int(phase))})
	}
	switch phase {
	case faultBegins:
		delay := time.Duration(0)
		if f.Kind == Fail {
			delay = s.cfg.HealthDelay
			gone, err := r.lose()
			if err != nil {
				return err
			}
			s.mover.failAll(r)
			if s.central != nil {
				s.central.lose(r)
			}
			if s.cascade != nil {
				s.cascade.lose(r, gone)
				gone = nil
			}
			for _, q := range gone {
				s.endRequest(q, replay.Cut, fmt.Sprintf("replica %d failed", r.index))
			}
		}
		after(delay, faultNoticed)
		if f.Until > 0 {
			after(f.Until-f.At, faultEnds)
		}
	case faultEnds:
		delay := time.Duration(0)
		if f.Kind == Fail {
			delay, r.failed = s.cfg.HealthDelay, false
			if s.cascade != nil {
				if err := s.cascade.restart(r.index); err != nil {
					return err
				}
			}
		}
		after(delay, faultEndNoticed)
	case faultNoticed, faultEndNoticed:
		begins := phase == faultNoticed
		switch {
		case s.cascade == nil:
			for i := range s.proxies {
				s.proxies[i].setDown(f.Replica, begins)
			}
		case f.Kind == Fail:
			s.cascade.setDown(f.Replica, begins)
		default:
			s.cascade.setDraining(f.Replica, begins)
		}
	}
	return nil
}
