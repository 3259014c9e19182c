package slothost

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// trial is an instance of a module that replays calls and answers none. It is used by warm,
// replay and compare of the module, and, while the module is active, by compare of the one
// in canary. The slot calls one of them at a time.
type trial struct {
	instance *host.Instance
	made     int    // calls since it ran deferred work
	state    []byte // that the last call returned
	// seen is how many of some records were replayed or compared.
	seen map[*records]uint64
}

// renew replaces the instance with a new one.
func (t *trial) renew(m *module) (err error) {
	if err := t.close(); err != nil {
		return err
	}
	t.instance, err = m.newInstance()
	t.made = 0
	return err
}

func (t *trial) close() error {
	i := t.instance
	if t.instance = nil; i == nil {
		return nil
	}
	return i.Close()
}

// unseen returns the records that the trial has not returned before.
func (t *trial) unseen(r *records) []host.Record {
	if t.seen == nil {
		t.seen = map[*records]uint64{}
	}
	all, added := r.since(t.seen[r])
	t.seen[r] = added
	return all
}

// answer replays a recorded call on the trial. The frame has the state of the policy that
// answered the call; answer replaces it with the trial's own, which it keeps from call to
// call.
func (m *module) answer(frame []byte, r *host.Record) error {
	frame, room := withState(frame, m.trial.state)
	if err := m.replayFrame(frame, r); err != nil {
		return err
	}
	if state, err := m.trial.instance.State(room); err == nil {
		m.trial.state = append(m.trial.state[:0], state...)
	}
	return nil
}

// withState returns a frame with another state, and the frame's room for a state.
func withState(frame, state []byte) ([]byte, int) {
	at, room := binary.LittleEndian.Uint32(frame[44:]), binary.LittleEndian.Uint32(frame[52:])
	if room == 0 || uint64(at)+uint64(room) > uint64(len(frame)) || len(state) > int(room) {
		return frame, int(room)
	}
	frame = slices.Clone(frame)
	binary.LittleEndian.PutUint32(frame[48:], uint32(len(state)))
	clear(frame[at+uint32(copy(frame[at:], state)) : at+room])
	return frame, int(room)
}

// replayFrame replays a frame on the trial, with retries. It replaces the trial after a
// call that timed out.
func (m *module) replayFrame(frame []byte, r *host.Record) (err error) {
	t := &m.trial
	if t.instance == nil {
		if err := t.renew(m); err != nil {
			return err
		}
	}
	if t.made++; t.made >= restEvery {
		t.made = 0
		if err := t.instance.RunDeferred(); err != nil {
			return fmt.Errorf("rest: %w", m.renewStarved(err))
		}
	}
	for try := 0; ; try++ {
		err = t.instance.Replay(frame, r)
		if host.CauseOf(err) != host.TimedOut || try == tries {
			return m.renewStarved(err)
		}
		if err := t.renew(m); err != nil {
			return err
		}
	}
}

// renewStarved returns err, an error of the trial, which it replaces if the call timed out
// while descheduled.
func (m *module) renewStarved(err error) error {
	if !host.Starved(err) {
		return err
	}
	if e := m.trial.renew(m); e != nil {
		return e
	}
	return err
}

// replay replays the calls that the active policy recorded since the last time, and
// compares the answers. active is nil for the native policy.
func (m *module) replay(ctx context.Context, active *module) (f lifecycle.Figures, err error) {
	source := m.slot.own
	if active != nil {
		source = active.calls
	}
	all := m.trial.unseen(source)
	for n := range all {
		r := &all[n]
		if ctx.Err() != nil {
			m.trial.seen[source] -= uint64(len(all) - n) // the next replay takes the rest
			return f, nil
		}
		if len(r.Frame) < abi.HeaderSize {
			continue
		}
		var got host.Record
		switch err := m.answer(r.Frame, &got); {
		case host.CauseOf(err) == host.TooLarge:
			continue // the native policy answers such calls in use, too
		case host.Starved(err):
			m.trial.seen[source] -= uint64(len(all) - n - 1)
			return f, nil
		case err != nil:
			m.trial.seen[source] -= uint64(len(all) - n - 1)
			return f, err
		}
		f.Calls++
		if r.Cause == 0 { // otherwise the active policy gave no answer to compare with
			m.slot.count(r, &got, &f)
		}
	}
	return f, nil
}

// compare replays the calls that this module answered since the last time on the active
// policy, and compares the answers. An active module replays them on its trial, not on
// the instances that answer callers. An answer to a call that the active policy cannot
// answer counts as compared, and not as worse.
func (m *module) compare(ctx context.Context, active *module) (f lifecycle.Figures, err error) {
	decide := m.slot.native.Answer
	if active != nil {
		decide = active.again
	}
	all := m.trial.unseen(m.calls)
	for n := range all {
		r := &all[n]
		if len(r.Frame) < abi.HeaderSize || r.Cause != 0 {
			continue // a faulted call is counted as a fault already
		}
		if ctx.Err() != nil {
			return f, err
		}
		var was host.Record
		if e := decide(r.Frame, &was); host.Starved(e) {
			m.trial.seen[m.calls] -= uint64(len(all) - n - 1) // the next compare takes the rest
			return f, err
		} else if e != nil {
			f.Compared++
			err = fmt.Errorf("the active policy has no answer: %w", e)
			continue
		}
		m.slot.count(&was, r, &f)
	}
	return f, err
}

// again is answer for the active module, which keeps its place whatever the result: a
// dead trial is replaced.
func (m *module) again(frame []byte, r *host.Record) error {
	if m.trial.instance != nil && m.trial.instance.Dead() != nil {
		if err := m.trial.renew(m); err != nil {
			return err
		}
	}
	return m.answer(frame, r)
}

// count compares two answers to the same call, and adds the result to the figures.
func (s *slot) count(active, candidate *host.Record, f *lifecycle.Figures) {
	differ, worse := kinds[s.kind].compare(&s.native, active, candidate)
	f.Compared++
	if differ {
		f.Differ++
	}
	if worse {
		f.Worse++
	}
}
