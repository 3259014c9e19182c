package slothost

import (
	"slices"
	"sync"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// caller is a slot as its callers see it: a policy, for one scope if the kind has scopes.
type caller[Q, A any] struct {
	*slot
	kind   *kind[Q, A]
	scope  string
	memory *memory // nil for kinds that are decided per request
}

func newCaller[Q, A any](s *slot, k *kind[Q, A], scope string, m *memory) *caller[Q, A] {
	return &caller[Q, A]{s, k, scope, m}
}

// ask makes a call: the module that the route names answers it, or the native policy.
func (c *caller[Q, A]) ask(q Q) A {
	s, k := c.slot, c.kind
	m := c.enter(q)
	if m == nil {
		if k.deny != nil && s.stable.Load() {
			return k.deny("the stable guard of the fleet does not run here: see cascade policy status, or roll the guard back")
		}
		a := k.native(&s.native, q)
		recordNative(s.own, k, q, a)
		return a
	}
	a, ok := askModule(m, k, c.memory, q)
	m.inUse.Done()
	switch {
	case ok:
		return a
	case k.deny != nil:
		return k.deny("the guard's module could not judge the plan")
	}
	return k.native(&s.native, q)
}

// enter returns the module that decides a call, nil for the native policy. The module stays
// loaded until its inUse is done. Whoever removes the module from the route sees the call.
func (c *caller[Q, A]) enter(q Q) *module {
	s := c.slot
	s.routing.RLock()
	defer s.routing.RUnlock()
	m := s.active
	if s.candidate != nil {
		tried := false
		if c.kind.request != nil {
			tried = s.route.triesRequest(c.kind.request(q))
		} else {
			tried = s.route.triesScope(c.scope)
		}
		if tried {
			m = s.candidate
		}
	}
	if m != nil {
		m.inUse.Add(1)
	}
	return m
}

// askModule makes a call of a module. If ok is false, the native policy must answer it: the
// call is counted and recorded, and its instance is replaced if it died.
func askModule[Q, A any](m *module, k *kind[Q, A], state *memory, q Q) (a A, ok bool) {
	if state != nil {
		state.mu.Lock()
		defer state.mu.Unlock()
	}
	i, number := m.pool.take()
	if i == nil {
		return a, false
	}
	c := abi.Call{ID: number, Seed: mix(number), Now: m.slot.clock()}
	if state != nil {
		state.recall(m.host.SHA256(), &c)
	}
	recorded := m.calls.recorded(number)
	if recorded {
		i.Record(&i.record)
	}
	a, err := host.Ask(i.Instance, k.Codec, c, q)
	if err != nil {
		// The frame is encoded once more, because the guest may have changed the first one;
		// it is nil for arguments that do not fit.
		frame, _ := k.Frame(c, q)
		m.fail(i, host.Record{Module: m.host.SHA256(), Kind: k.Kind, Frame: frame, Cause: host.CauseOf(err)}, err)
		return a, false
	}
	if state != nil {
		kept, err := i.State(c.Room)
		state.keep(m.host.SHA256(), kept, err)
	}
	if recorded {
		m.calls.add(&i.record)
	}
	m.pool.give(i)
	return a, true
}

// mix is splitmix64. It derives the seed of a call from its number.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// memory is the state that modules keep for one caller between its calls, for example
// for the partitions of a model. A module gets the state that it returned from its last
// call, whatever instance or generation of it ran then, and never the state of another
// module. Calls with the same memory run one at a time. The zero memory is empty.
// Nothing is kept when the process ends.
//
// Kinds that are decided per request have no state: their calls run concurrently,
// without an order that a state could follow.
type memory struct {
	mu   sync.Mutex
	kept []kept // guarded by mu: states of the last two modules, latest first
}

type kept struct {
	module [32]byte
	state  []byte
}

// mostKept is the number of modules whose states are kept: a failing canary must not
// displace the state of the active module.
const mostKept = 2

// recall sets the state of a call to that of its module. The caller holds the lock.
func (m *memory) recall(module [32]byte, c *abi.Call) {
	c.Room = abi.MaxState
	for _, k := range m.kept {
		if k.module == module {
			c.State = k.state
		}
	}
}

// keep stores a copy of the state that a call returned. If that state is invalid, err is
// set and the previous state stays. The caller holds the lock.
func (m *memory) keep(module [32]byte, state []byte, err error) {
	if err != nil {
		return
	}
	k := kept{module: module}
	if i := slices.IndexFunc(m.kept, func(o kept) bool { return o.module == module }); i >= 0 {
		k = m.kept[i]
		m.kept = slices.Delete(m.kept, i, i+1)
	} else if len(state) == 0 {
		return // there is no state to clear
	}
	k.state = append(k.state[:0], state...)
	m.kept = slices.Insert(m.kept, 0, k)
	m.kept = m.kept[:min(len(m.kept), mostKept)]
}
