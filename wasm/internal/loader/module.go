package loader

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"slices"
	"sync"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/policy"
)

// module is a module that Compile made.
type module struct {
	loader        *Loader
	host          *host.Module
	configuration []byte
	expected      []calllog.Call
	policy        *policy.Policy
	judge         judge

	// What the policy's Run is stopped by, and how it ended.
	stop  context.CancelFunc
	group sync.WaitGroup
	ended error

	// For warm, then replay, then compare, then those of the module that is tried
	// when this one is in force: the slot calls one of them at a time.
	trial *host.Instance    // for those calls alone
	made  int               // calls of the trial since it rested
	seen  map[source]uint64 // the last recorded call that was replayed or compared
	state []byte            // what the trial kept at its last call
}

// source is where the numbers of calls are ordered: one instance of one
// generation.
type source struct {
	generation lifecycle.Generation
	instance   uint64
}

// run lets the policy replace instances until close.
func (m *module) run() {
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	m.group.Go(func() { m.ended = m.policy.Run(ctx) })
}

// close frees everything.
func (m *module) close() error {
	m.loader.mu.Lock()
	delete(m.loader.loaded, Policy(m.policy))
	m.loader.mu.Unlock()
	m.stop()
	m.group.Wait()
	err := m.ended
	if m.trial != nil {
		err = errors.Join(err, m.trial.Close())
	}
	return errors.Join(err, m.host.Close())
}

// instance makes an instance for trials.
func (m *module) instance() (*host.Instance, error) {
	i, err := m.host.Instantiate()
	if err != nil {
		return nil, err
	}
	if err := i.Configure(abi.Call{}, m.configuration); err != nil {
		return nil, errors.Join(err, i.Close())
	}
	return i, nil
}

// restEvery is how many calls the trial makes before it rests, as the policy's
// instances do.
const restEvery = 500

// tries is how often what took too long is done again: the machine may not have
// run it. A module that is slow is so each time. What the machine did not run
// (host.Starved) does not count as a try in warm, and in shadow is left out.
const tries = 3

// warm has two instances answer the vectors of the kind. Every answer has to keep
// the kind's rules, and both have to give the same ones for the same fuel, and to
// end with the same memory: a module that cannot be replayed cannot be trusted
// by what it showed. Then a third one has to give the answers that were signed with
// the module, for the fuel that was.
func (m *module) warm(ctx context.Context) (err error) {
	for try := 0; try < tries; {
		var f *host.Fault
		if err = m.warmOnce(ctx); !errors.As(err, &f) || f.Cause != host.TimedOut || ctx.Err() != nil {
			break
		}
		if !f.Starved {
			try++
		}
	}
	if err != nil {
		return err
	}
	// What the fleet runs already, and most modules are that, is not tried further.
	err = m.trial.Close()
	m.trial = nil
	return errors.Join(err, m.policy.Warm(vectors(m.loader.config.Kind)))
}

func (m *module) warmOnce(ctx context.Context) error {
	if err := m.renew(); err != nil {
		return err
	}
	second, err := m.instance()
	if err != nil {
		return err
	}
	defer second.Close()
	for n, frame := range vectors(m.loader.config.Kind) {
		if err := ctx.Err(); err != nil {
			return err
		}
		var a, b host.Record
		if err := m.trial.Replay(frame, &a); err != nil {
			return fmt.Errorf("vector %d: %w", n, err)
		}
		if err := second.Replay(frame, &b); err != nil {
			return fmt.Errorf("vector %d, once more: %w", n, err)
		}
		if !a.Equal(&b) {
			return fmt.Errorf("vector %d: two instances decide differently: result %#x for %d ticks, and %#x for %d", n, a.Result, a.Fuel, b.Result, b.Fuel)
		}
	}
	if m.trial.Hash() != second.Hash() {
		return errors.New("two instances that had the same calls differ in their memory")
	}
	return m.expect(ctx)
}

// expect has a new instance answer what was signed with the module.
func (m *module) expect(ctx context.Context) error {
	if len(m.expected) == 0 {
		return nil
	}
	i, err := m.instance()
	if err != nil {
		return err
	}
	return errors.Join(calllog.Check(ctx, i, m.loader.config.Kind, m.expected), i.Close())
}

// renew makes a new instance for trials.
func (m *module) renew() (err error) {
	if m.trial != nil {
		if err := m.trial.Close(); err != nil {
			return err
		}
	}
	m.trial, err = m.instance()
	m.made = 0
	return err
}

// answer makes a recorded call again. The state in a frame is what the policy kept
// that had the call: the trial gets its own, and keeps it from call to call.
func (m *module) answer(frame []byte, r *host.Record) error {
	frame, room := withState(frame, m.state)
	if err := m.ask(frame, r); err != nil {
		return err
	}
	if state, err := m.trial.State(room); err == nil {
		m.state = append(m.state[:0], state...)
	}
	return nil
}

// withState is a frame with another state, and the room that it has for one.
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

// ask has the trial answer a frame. After a call that the machine did not run there
// is another trial.
func (m *module) ask(frame []byte, r *host.Record) (err error) {
	if m.trial == nil {
		if err := m.renew(); err != nil {
			return err
		}
	}
	if m.made++; m.made >= restEvery {
		m.made = 0
		if err := m.trial.RunDeferred(); err != nil {
			return fmt.Errorf("rest: %w", m.starved(err))
		}
	}
	for try := 0; ; try++ {
		err = m.trial.Replay(frame, r)
		if host.CauseOf(err) != host.TimedOut || try == tries {
			return m.starved(err)
		}
		if err := m.renew(); err != nil {
			return err
		}
	}
}

// starved returns an error of the trial, which is made anew if it is not to blame.
func (m *module) starved(err error) error {
	if !host.Starved(err) {
		return err
	}
	if e := m.renew(); e != nil {
		return e
	}
	return err
}

// replay has the module answer what was recorded since the last time, and
// compares.
func (m *module) replay(ctx context.Context) (lifecycle.Figures, error) {
	var f lifecycle.Figures
	var generation lifecycle.Generation
	var records []host.Record
	m.loader.config.InForce(func(g lifecycle.Generation, p Policy) { generation, records = g, p.Records() })
	for i := range records {
		if ctx.Err() != nil {
			return f, nil // the rest next time, if there is one
		}
		r := &records[i]
		if len(r.Frame) < abi.HeaderSize || !m.isNew(generation, r) {
			continue
		}
		var got host.Record
		switch err := m.answer(r.Frame, &got); {
		case host.CauseOf(err) == host.TooLarge:
			continue // nor would it be asked: the native policy answers those
		case host.Starved(err):
			return f, nil // the rest when the machine runs it
		case err != nil:
			return f, err
		}
		f.Calls++
		if r.Cause != 0 {
			continue // the answer is not known
		}
		m.judge.count(r, &got, &f)
	}
	return f, nil
}

// compare has the policy in force decide again what this one decided since the
// last time. Neither is asked where callers ask it: a module decides on its trial.
// What the policy in force has no answer to is no worse for having been answered.
func (m *module) compare(ctx context.Context) (f lifecycle.Figures, err error) {
	m.loader.config.InForce(func(g lifecycle.Generation, p Policy) {
		decide := m.loader.config.Native.Answer
		if active := m.loader.module(p); active == m {
			return // it was promoted meanwhile
		} else if active != nil {
			decide = active.again
		}
		records := m.policy.Records()
		for i := range records {
			r := &records[i]
			// A fault has been counted as such.
			if len(r.Frame) < abi.HeaderSize || !m.isNew(canary, r) || r.Cause != 0 {
				continue
			}
			if ctx.Err() != nil {
				return
			}
			var was host.Record
			if e := decide(r.Frame, &was); host.Starved(e) {
				return // the rest when the machine runs it
			} else if e != nil {
				f.Compared++
				err = fmt.Errorf("generation %d has no answer: %w", g, e)
				continue
			}
			m.judge.count(&was, r, &f)
		}
	})
	return f, err
}

// again is answer for what is in force, which goes on whatever comes of it.
func (m *module) again(frame []byte, r *host.Record) error {
	if m.trial != nil && m.trial.Dead() != nil {
		if err := m.renew(); err != nil {
			return err
		}
	}
	return m.answer(frame, r)
}

// canary is where the numbers of a module's own calls are ordered.
const canary = ^lifecycle.Generation(0)

// isNew reports whether a recorded call was not replayed before, and notes it.
func (m *module) isNew(g lifecycle.Generation, r *host.Record) bool {
	call := binary.LittleEndian.Uint64(r.Frame[64:])
	from := source{g, call >> 48}
	if call <= m.seen[from] {
		return false
	}
	m.seen[from] = call
	return true
}
