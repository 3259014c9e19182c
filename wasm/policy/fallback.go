package policy

import (
	"slices"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// A call that the module does not answer falls back to the native policy, in the same
// call: ask and askFor answer it, endFailed deals with the instance, and countFault opens
// the breaker.

// ask makes a call of a kind that decides for one request: an instance of the module
// answers it, or the native policy.
func ask[Q, A any](p *Policy, k *adapter[Q, A], q Q) A {
	if s := p.acquire(k.Kind); s != nil {
		c := s.call(p)
		a, err := host.Ask(s.instance, k.Codec, c, q)
		if err == nil {
			p.endAnswered(s)
			return a
		}
		p.endFailed(s, k.Kind, err, frameOf(k, c, q))
	}
	return k.native(&p.config.Native, q)
}

// askFor makes a call of a kind that decides for many requests, with the state of the
// caller.
func askFor[Q, A any](p *Policy, k *adapter[Q, A], m *Memory, q Q) A {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := p.acquire(k.Kind); s != nil {
		c := s.call(p)
		m.recall(p.module, &c)
		a, err := host.Ask(s.instance, k.Codec, c, q)
		if err == nil {
			state, err := s.instance.State(c.Room)
			m.keep(p.module, state, err)
			p.endAnswered(s)
			return a
		}
		p.endFailed(s, k.Kind, err, frameOf(k, c, q))
	}
	return k.native(&p.config.Native, q)
}

// frameOf encodes a failed call once more, for its record: the guest may have changed the
// first frame. It returns nil for arguments that do not fit into a frame.
func frameOf[Q, A any](k *adapter[Q, A], c abi.Call, q Q) []byte {
	frame, _ := k.Frame(c, q)
	return frame
}

// endFailed ends a failed call, which the native policy then answers: it counts and
// records the call, and has the instance replaced if that is dead.
func (p *Policy) endFailed(s *slot, k abi.Kind, err error, frame []byte) {
	cause := host.CauseOf(err)
	r := s.sampled
	if r == nil || len(r.Frame) == 0 {
		if r == nil {
			r = s.record()
		}
		*r = host.Record{Module: p.config.Module.SHA256(), Kind: k, Frame: frame}
		if cause != host.TooLarge {
			r.Fuel = s.instance.Fuel()
		}
	}
	r.Cause = cause
	s.trim(k, p.config.KeepBytes)
	p.recordFuel(r.Fuel)
	p.count(err)
	if cause == host.TimedOut {
		s.late = slices.Clone(r.Frame)
	}
	if s.instance.Dead() == nil {
		p.releaseAlive(s)
		return
	}
	p.releaseDead(s)
}

// countFault reports a fault of the module, and opens the breaker when there are too
// many.
func (p *Policy) countFault() {
	p.config.Faulted()
	if p.config.Failures < 0 {
		return
	}
	now := p.config.Clock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open {
		return
	}
	if len(p.failures) == p.config.Failures {
		p.failures = slices.Delete(p.failures, 0, 1)
	}
	p.failures = append(p.failures, now)
	if len(p.failures) == p.config.Failures && now.Sub(p.failures[0]) <= p.config.Window {
		p.open = true
		p.shut.Store(true)
		p.wakeWaiting()
		close(p.opened)
		p.log().Error("the breaker is open: the native policy answers from now on", "failures", p.config.Failures, "window", p.config.Window)
	}
}

// retryLate repeats a call that timed out, on a new instance, and returns a live one:
// that instance or its replacement. A module that times out on every try is slow, which
// counts as a fault. Otherwise the host had descheduled its thread, which can happen
// again during a try.
func (p *Policy) retryLate(i *host.Instance, frame []byte) (*host.Instance, error) {
	for try := 1; ; try++ {
		var r host.Record
		err := i.Replay(frame, &r)
		if i.Dead() == nil {
			return i, nil
		}
		i.Close()
		late := host.CauseOf(err) == host.TimedOut
		if host.Starved(err) {
			return p.instance()
		}
		if !late {
			p.count(err)
		} else if try == lateTries {
			p.log().Warn("a policy's module is slow", "error", err)
			p.countFault()
		}
		if i, err = p.instance(); err != nil || !late || try == lateTries {
			return i, err
		}
	}
}
