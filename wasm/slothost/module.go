package slothost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// module is a compiled generation of a slot.
type module struct {
	slot          *slot
	generation    lifecycle.Generation
	host          *host.Module
	configuration []byte
	expected      []calllog.Call
	log           *slog.Logger

	inUse sync.WaitGroup // calls and trials: while there are some, the module stays loaded
	pool  pool
	calls *records
	trial trial

	faults, starved uint64            // guarded by pool.mu
	before          uint64            // guarded by slot.mu: calls when this step of its canary began
	compared        lifecycle.Figures // guarded by slot.mu: of this step

	stop context.CancelFunc // ends keep
	kept sync.WaitGroup     // done when keep has ended
}

// verify checks the signatures and the kind of a candidate's statement, its expiry unless
// the candidate is stable, and that it is about the candidate's module and configuration.
func (s *slot) verify(c lifecycle.Candidate) error {
	f, err := sign.Decode(c.Signature)
	if err != nil {
		return err
	}
	now := s.host.config.Now()
	if c.Stable {
		now = time.Time{} // a stable module runs on after its statement has expired
	}
	st, err := sign.Verify(f, c.Module, c.Configuration, s.host.config.Ring, now)
	if err != nil {
		return err
	}
	return s.checkStatement(st, c)
}

// compile returns the module of a candidate that was verified. The limits of the module are
// the lower ones of its grant and this host's.
func (s *slot) compile(ctx context.Context, c lifecycle.Candidate) (*module, error) {
	f, err := sign.Decode(c.Signature)
	if err != nil {
		return nil, err
	}
	grant, _ := f.Statement.Grant(s.kind)
	config := &s.host.config
	log := s.log.With("generation", uint64(c.Generation), "name", f.Statement.Name, "version", f.Statement.Version)
	limits := config.Limits
	limits[s.kind] = least(limits[s.kind], host.DefaultLimit(s.kind), grant)
	loaded, err := host.Load(ctx, host.Config{
		Kinds: []abi.Kind{s.kind}, Limits: limits, Engine: s.host.engine, Watchdog: s.host.watch, Logger: log,
		Cache: config.Cache,
	}, c.Module)
	if err != nil {
		return nil, err
	}
	m := &module{slot: s, generation: c.Generation, host: loaded, configuration: c.Configuration, log: log,
		calls: newRecords(s.every, s.name.PerRequest(), s.clock)}
	if len(f.Golden) > 0 {
		if m.expected, err = calllog.Golden(f.Golden, loaded.SHA256()); err != nil {
			return nil, errors.Join(err, loaded.Close())
		}
	}
	if err := m.start(ctx); err != nil {
		return nil, errors.Join(err, loaded.Close())
	}
	return m, nil
}

// start makes the instances of the module, and keeps them until close.
func (m *module) start(ctx context.Context) error {
	instances, p := 1, &m.pool
	if m.slot.name.PerRequest() {
		instances = cmp.Or(m.slot.host.config.Instances, runtime.GOMAXPROCS(0))
	}
	p.rests = m.slot.name.PerRequest() && m.host.HasDeferred()
	p.pages, p.wake, p.freed.L = m.host.Report().MaxPages, make(chan struct{}, 1), &p.mu
	for len(p.free) < instances {
		i, err := m.newInstance()
		if host.Starved(err) && ctx.Err() == nil {
			continue
		} else if err != nil {
			p.close()
			return err
		}
		p.free = append(p.free, &instance{Instance: i})
	}
	keeping, stop := context.WithCancel(context.Background())
	m.stop = stop
	m.kept.Go(func() { m.keep(keeping) })
	return nil
}

// close frees the module and its instances. It is called when no call is in progress.
func (m *module) close() error {
	m.stop()
	m.kept.Wait()
	m.pool.close()
	return errors.Join(m.trial.close(), m.host.Close())
}

// addCounts adds to a status the calls that instances got since the module was loaded, those
// that the native policy answered, those of them that are not faults, and the fuel of
// recorded calls.
func (m *module) addCounts(s *lifecycle.Status) {
	m.pool.mu.Lock()
	s.Calls, s.Faults, s.Starved = m.pool.calls, m.faults, m.starved
	m.pool.mu.Unlock()
	m.calls.mu.Lock()
	defer m.calls.mu.Unlock()
	s.Fuel = m.calls.fuel
}

// called returns the number of calls that instances got.
func (m *module) called() uint64 {
	m.pool.mu.Lock()
	defer m.pool.mu.Unlock()
	return m.pool.calls
}

// tries is how often a call that timed out is repeated, because the host may have
// descheduled it; a slow module times out each time. A call that timed out while
// descheduled (host.Starved) does not count as a try in warm, and is skipped in shadow.
const tries = 3

// warm replays the vectors of the kind on two instances. Every answer must keep the
// kind's rules. Both instances must give the same answers for the same fuel and end with
// the same memory: the trials of a module that is not deterministic prove nothing. Then
// a third instance must give the answers that were signed with the module, for the same
// fuel. In the end every instance of the pool replays the vectors, because the first calls
// of an instance take long.
func (m *module) warm(ctx context.Context) (err error) {
	frames := kinds[m.slot.kind].frames()
	for try := 0; try < tries; {
		var f *host.Fault
		if err = m.warmOnce(ctx, frames); !errors.As(err, &f) || f.Cause != host.TimedOut || ctx.Err() != nil {
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
	return errors.Join(m.trial.close(), m.warmPool(frames))
}

func (m *module) warmOnce(ctx context.Context, frames [][]byte) error {
	if err := m.trial.renew(m); err != nil {
		return err
	}
	second, err := m.newInstance()
	if err != nil {
		return err
	}
	defer second.Close()
	first := m.trial.instance
	for n, frame := range frames {
		if err := ctx.Err(); err != nil {
			return err
		}
		var a, b host.Record
		if err := first.Replay(frame, &a); err != nil {
			return fmt.Errorf("vector %d: %w", n, err)
		}
		if err := second.Replay(frame, &b); err != nil {
			return fmt.Errorf("vector %d, once more: %w", n, err)
		}
		if !a.Equal(&b) {
			return fmt.Errorf("vector %d: two instances decide differently: result %#x for %d ticks, and %#x for %d",
				n, a.Result, a.Fuel, b.Result, b.Fuel)
		}
	}
	if first.Hash() != second.Hash() {
		return errors.New("two instances that had the same calls differ in their memory")
	}
	if len(m.expected) == 0 {
		return nil
	}
	third, err := m.newInstance()
	if err != nil {
		return err
	}
	return errors.Join(calllog.Check(ctx, third, m.slot.kind, m.expected), third.Close())
}

// warmPool replays the vectors on every instance of the pool, which answers no calls yet.
// An instance that times out is replaced without an error.
func (m *module) warmPool(frames [][]byte) error {
	m.pool.mu.Lock()
	instances := m.pool.free
	m.pool.free, m.pool.busy = nil, len(instances)
	m.pool.mu.Unlock()
	var fault error
	for _, i := range instances {
		for _, frame := range frames {
			var r host.Record
			if err := i.Replay(frame, &r); err != nil && host.CauseOf(err) != host.TimedOut {
				fault = errors.Join(fault, err)
			}
			if i.Dead() != nil {
				break
			}
		}
		m.pool.give(i)
	}
	return fault
}

// least returns the lower of the host's limits, or their defaults, and those of a grant.
func least(l, by host.Limit, g sign.Grant) host.Limit {
	l.Fuel = cmp.Or(l.Fuel, by.Fuel)
	l.Wall = cmp.Or(l.Wall, by.Wall)
	l.Pages = cmp.Or(l.Pages, by.Pages)
	if g.Fuel > 0 && g.Fuel < uint64(l.Fuel) {
		l.Fuel = int64(g.Fuel)
	}
	if g.Micros > 0 && g.Micros < uint64(l.Wall/time.Microsecond) {
		l.Wall = time.Duration(g.Micros) * time.Microsecond
	}
	if g.Pages > 0 && g.Pages < uint64(l.Pages) {
		l.Pages = uint32(g.Pages)
	}
	return l
}
