package slothost

import (
	"fmt"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

// Status returns the state of the slots, in the order of their kinds. The modules of
// a slot are the present ones, then those that wait or are being fetched, then the ended
// ones, latest first.
func (s *Slots) Status() []lifecycle.SlotStatus {
	all := make([]lifecycle.SlotStatus, 0, len(s.config.Kinds))
	for _, kind := range s.config.Kinds {
		st := s.slots[kind].status(s.config.Now())
		if s.err != nil {
			st.Refused = s.err.Error()
		}
		s.addReasons(&st)
		all = append(all, st)
	}
	return all
}

// status returns the state of one slot: what the machine knows of each module, with its
// counters.
func (s *slot) status(now time.Time) lifecycle.SlotStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.machine.slotStatus()
	st.Floor, st.Refused = s.history.Mark.Generation, s.refusal
	if s.unwritten != nil && s.refusal == "" {
		st.Refused = fmt.Sprintf("slot %s: the file of admitted modules could not be written: %v", s.kind, s.unwritten)
	}
	for i := range st.Modules {
		m := &st.Modules[i]
		if expiry := expiry(m.NotAfterUnixMillis/1000, now); expiry != "" && m.Phase >= lifecycle.Warm && m.Phase <= lifecycle.Previous {
			m.Reason = strings.TrimPrefix(m.Reason+"; "+expiry, "; ")
		}
		if loaded := s.modules[m.Generation]; loaded != nil && !m.Phase.Ended() {
			loaded.addCounts(m)
		}
		m.Reached = reached(*m)
	}
	return st
}

// warnBefore is how long before a statement expires the status of its module warns.
const warnBefore = 7 * 24 * time.Hour

// expiry returns a warning that a statement expires soon or has expired; "" otherwise. It
// expires after the second notAfter, or never if that is 0.
func expiry(notAfter int64, now time.Time) string {
	end := time.Unix(notAfter, 0)
	text := end.UTC().Format(time.RFC3339)
	switch {
	case notAfter == 0:
		return ""
	case now.Unix() > notAfter:
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
