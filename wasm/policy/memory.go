package policy

import (
	"slices"
	"sync"

	"github.com/cascadeinfer/cascade/wasm/abi"
)

// Memory is the state that modules keep for one caller between its calls, for example
// for the partitions of a model. A module gets the state that it returned from its last
// call, whatever instance or generation of it ran then, and never the state of another
// module. Calls with the same Memory run one at a time. The zero Memory is empty.
// Nothing is kept when the process ends.
//
// Kinds that are decided per request have no state: their calls run concurrently,
// without an order that a state could follow.
type Memory struct {
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
func (m *Memory) recall(module [32]byte, c *abi.Call) {
	c.Room = abi.MaxState
	for _, k := range m.kept {
		if k.module == module {
			c.State = k.state
		}
	}
}

// keep stores a copy of the state that a call returned. If that state is invalid, err is
// set and the previous state stays. The caller holds the lock.
func (m *Memory) keep(module [32]byte, state []byte, err error) {
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
