package loader

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
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

	// stop ends the policy's Run, whose error is in ended.
	stop  context.CancelFunc
	group sync.WaitGroup
	ended error

	// Used by warm, replay and compare of this module, and, while this module is
	// active, by compare of the module in canary. The slot calls one of them at a time.
	trial *host.Instance    // used only by those
	made  int               // calls of the trial since it ran deferred work
	seen  map[source]uint64 // the last recorded call that was replayed or compared
	state []byte            // the state that the last call on the trial returned
}

// source is one instance of one generation. Call numbers are ordered only within a
// source.
type source struct {
	generation lifecycle.Generation
	instance   uint64
}

// run runs the policy until close.
func (m *module) run() {
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	m.group.Go(func() { m.ended = m.policy.Run(ctx) })
}

// close ends the policy's Run and frees the module and its instances.
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

// instance makes a configured instance for trials.
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

// restEvery is the number of calls after which the trial runs deferred work, as the
// policy's instances do.
const restEvery = 500

// tries is how often a call that timed out is repeated, because the host may have
// descheduled it; a slow module times out each time. A call that timed out while
// descheduled (host.Starved) does not count as a try in warm, and is skipped in shadow.
const tries = 3

// warm replays the vectors of the kind on two instances. Every answer must keep the
// kind's rules. Both instances must give the same answers for the same fuel and end with
// the same memory: the trials of a module that is not deterministic prove nothing. Then
// a third instance must give the answers that were signed with the module, for the same
// fuel.
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
	// Most modules are stable ones, which need no further trials: free the instance.
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

// expect checks the signed expectations on a new instance.
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

// renew replaces the trial with a new instance.
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

// answer replays a recorded call on the trial. The frame has the state of the policy that
// answered the call; answer replaces it with the trial's own, which it keeps from call to
// call.
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

// ask replays a frame on the trial, with retries. It replaces the trial after a call that
// timed out.
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

// starved returns err, an error of the trial, which it replaces if the call timed out
// while descheduled.
func (m *module) starved(err error) error {
	if !host.Starved(err) {
		return err
	}
	if e := m.renew(); e != nil {
		return e
	}
	return err
}

// replay replays the calls that the active policy recorded since the last time, and
// compares the answers.
func (m *module) replay(ctx context.Context) (lifecycle.Figures, error) {
	var f lifecycle.Figures
	var generation lifecycle.Generation
	var records []host.Record
	m.loader.config.InForce(func(g lifecycle.Generation, p Policy) { generation, records = g, p.Records() })
	for i := range records {
		if ctx.Err() != nil {
			return f, nil // the next replay takes the rest
		}
		r := &records[i]
		if len(r.Frame) < abi.HeaderSize || !m.isNew(generation, r) {
			continue
		}
		var got host.Record
		switch err := m.answer(r.Frame, &got); {
		case host.CauseOf(err) == host.TooLarge:
			continue // the native policy answers such calls in use, too
		case host.Starved(err):
			return f, nil // the next replay takes the rest
		case err != nil:
			return f, err
		}
		f.Calls++
		if r.Cause != 0 {
			continue // the active policy gave no answer to compare with
		}
		m.judge.count(r, &got, &f)
	}
	return f, nil
}

// compare replays the calls that this module answered since the last time on the active
// policy, and compares the answers. An active module replays them on its trial, not on
// the instances that answer callers. An answer to a call that the active policy cannot
// answer counts as compared, and not as worse.
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
			// A faulted call is counted as a fault already.
			if len(r.Frame) < abi.HeaderSize || !m.isNew(canary, r) || r.Cause != 0 {
				continue
			}
			if ctx.Err() != nil {
				return
			}
			var was host.Record
			if e := decide(r.Frame, &was); host.Starved(e) {
				return // the next compare takes the rest
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

// again is answer for the active module, which keeps its place whatever the result: a
// dead trial is replaced.
func (m *module) again(frame []byte, r *host.Record) error {
	if m.trial != nil && m.trial.Dead() != nil {
		if err := m.renew(); err != nil {
			return err
		}
	}
	return m.answer(frame, r)
}

// canary is the generation in the sources of a module's own calls.
const canary = ^lifecycle.Generation(0)

// isNew reports whether a recorded call was not replayed before, and marks it as
// replayed.
func (m *module) isNew(g lifecycle.Generation, r *host.Record) bool {
	call := binary.LittleEndian.Uint64(r.Frame[64:])
	from := source{g, call >> 48}
	if call <= m.seen[from] {
		return false
	}
	m.seen[from] = call
	return true
}
