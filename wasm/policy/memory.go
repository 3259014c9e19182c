package policy

import (
	"slices"
	"sync"

	"github.com/cascadeinfer/cascade/wasm/abi"
)

// Memory is the state that modules keep for one who asks them, between its calls:
// for a model's partitions, say. Whichever module decides finds what it kept when
// it decided last, whatever instance or generation of it ran then, and nothing of
// another module's. Calls with one Memory wait for each other. The zero Memory is
// empty. It lives as long as the process.
//
// Kinds that come with every request have none: their calls run at once, in no
// order that a state could follow.
type Memory struct {
	mu   sync.Mutex
	kept []kept // guarded by mu: the last two modules', the latest first
}

type kept struct {
	module [32]byte
	state  []byte
}

// mostKept is whose states are kept: a canary that fails must not cost the active
// module its own.
const mostKept = 2

// recall gives a call the state of a module. The lock is held.
func (m *Memory) recall(module [32]byte, c *abi.Call) {
	c.Room = abi.MaxState
	for _, k := range m.kept {
		if k.module == module {
			c.State = k.state
		}
	}
}

// keep takes a copy of what a call left. What breaks the rules is not kept, and what
// was before is. The lock is held.
func (m *Memory) keep(module [32]byte, state []byte, err error) {
	if err != nil {
		return
	}
	k := kept{module: module}
	if i := slices.IndexFunc(m.kept, func(o kept) bool { return o.module == module }); i >= 0 {
		k = m.kept[i]
		m.kept = slices.Delete(m.kept, i, i+1)
	} else if len(state) == 0 {
		return // as it was
	}
	k.state = append(k.state[:0], state...)
	m.kept = slices.Insert(m.kept, 0, k)
	m.kept = m.kept[:min(len(m.kept), mostKept)]
}
