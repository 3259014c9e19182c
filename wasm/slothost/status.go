package slothost

import (
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/policy"
)

// Status returns the state of the slots, in the order of their kinds. The modules of
// a slot are the present ones, then the ended ones, latest first.
func (s *Slots) Status() []lifecycle.SlotStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]lifecycle.SlotStatus, 0, len(s.config.Kinds))
	for _, kind := range s.config.Kinds {
		st := s.slots[kind].status(s.config.Now())
		if s.err != nil {
			st.Refused = s.err.Error()
		}
		all = append(all, st)
	}
	return all
}

// status returns the state of one slot: what the machine knows of each module, with
// its names and counters. The lock of Slots is held.
func (k *kindSlot) status(now time.Time) lifecycle.SlotStatus {
	st, loaded := k.slot.Status(), k.slot.Loaded()
	for i := range st.Modules {
		m := &st.Modules[i]
		var stats *policy.Stats
		if a := k.about[m.Generation]; a != nil {
			m.Name, m.Version, m.SHA256, m.NotAfterUnixMillis, stats = a.name, a.version, a.digest, a.notAfter*1000, a.stats
			if expiry := a.expiry(now); expiry != "" && m.Phase >= lifecycle.Warm && m.Phase <= lifecycle.Previous {
				m.Reason = strings.TrimPrefix(m.Reason+"; "+expiry, "; ")
			}
		}
		if p, ok := loaded[m.Generation].(*policy.Policy); ok {
			present := p.Stats()
			stats = &present
		}
		if stats != nil {
			m.Calls, m.Starved, m.Fuel = stats.Calls, stats.Starved, lifecycle.Fuel(stats.Fuel)
			for _, n := range stats.Faults {
				m.Faults += n
			}
		}
		m.Reached = reached(*m)
	}
	return st
}

// reached returns the furthest phase that a generation is known to have reached, 0 if
// it was never warm. One that failed while it was being built has answered nothing.
func reached(m lifecycle.Status) lifecycle.Phase {
	switch {
	case m.Phase >= lifecycle.Warm && m.Phase <= lifecycle.Active:
		return m.Phase
	case m.Phase == lifecycle.Previous:
		return lifecycle.Active
	case m.Calls > 0 || m.Figures.Calls > 0:
		return lifecycle.Shadow
	}
	return 0
}
