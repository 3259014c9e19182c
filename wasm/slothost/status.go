package slothost

import (
	"fmt"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// Status returns the state of the slots, in the order of their kinds. The modules of
// a slot are the present ones, then the ended ones, latest first, then those that are being
// fetched.
func (s *Slots) Status() []lifecycle.SlotStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]lifecycle.SlotStatus, 0, len(s.config.Kinds))
	for _, kind := range s.config.Kinds {
		k := s.slots[kind]
		st := k.status(s.config.Now())
		if st.Refused = k.refusal; s.err != nil {
			st.Refused = s.err.Error()
		}
		s.addFetching(k, &st)
		all = append(all, st)
	}
	return all
}

// status returns the state of one slot: what the machine knows of each module, with
// its names and counters. The lock of Slots is held.
func (k *slot) status(now time.Time) lifecycle.SlotStatus {
	k.mu.Lock()
	defer k.mu.Unlock()
	st := k.machine.slotStatus()
	st.Floor = k.history.Mark.Generation
	for i := range st.Modules {
		m := &st.Modules[i]
		if a := k.about[m.Generation]; a != nil {
			m.Name, m.Version, m.SHA256, m.NotAfterUnixMillis = a.statement.Name, a.statement.Version, a.statement.Digest, a.statement.NotAfter*1000
			if expiry := expiry(a.statement, now); expiry != "" && m.Phase >= lifecycle.Warm && m.Phase <= lifecycle.Previous {
				m.Reason = strings.TrimPrefix(m.Reason+"; "+expiry, "; ")
			}
		}
		if loaded := k.modules[m.Generation]; loaded != nil && !m.Phase.Ended() {
			loaded.addCounts(m)
		}
		m.Reached = reached(*m)
	}
	return st
}

// warnBefore is how long before a statement expires the status of its module warns.
const warnBefore = 7 * 24 * time.Hour

// expiry returns a warning that a statement expires soon or has expired; "" otherwise.
func expiry(s sign.Statement, now time.Time) string {
	end := time.Unix(s.NotAfter, 0)
	text := end.UTC().Format(time.RFC3339)
	switch {
	case s.NotAfter == 0:
		return ""
	case now.Unix() > s.NotAfter:
		return fmt.Sprintf("its statement expired at %s: a stable module runs on; sign it anew and push it", text)
	case end.Sub(now) <= warnBefore:
		return fmt.Sprintf("its statement expires at %s: sign it anew and push it", text)
	}
	return ""
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
