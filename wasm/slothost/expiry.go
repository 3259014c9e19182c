package slothost

import (
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

const (
	// warnBefore is how long before a statement expires the status of its module and
	// the log warn.
	warnBefore = 7 * 24 * time.Hour
	// warnEvery is the interval between two warnings in the log.
	warnEvery = 24 * time.Hour
	// checkExpiryEvery is the interval between two checks.
	checkExpiryEvery = time.Hour
)

// expiry returns a warning that the statement of a generation expires soon or has
// expired; "" otherwise.
func (a *about) expiry(now time.Time) string {
	if a.statement.NotAfter == 0 {
		return ""
	}
	end := time.Unix(a.statement.NotAfter, 0)
	text := end.UTC().Format(time.RFC3339)
	switch {
	case now.Unix() > a.statement.NotAfter:
		return fmt.Sprintf("its statement expired at %s: a stable module runs on; sign it anew and push it", text)
	case end.Sub(now) <= warnBefore:
		return fmt.Sprintf("its statement expires at %s: sign it anew and push it", text)
	}
	return ""
}

// warnExpiring logs the modules in use whose statements expire.
func (s *Slots) warnExpiring() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.warnExpiringLocked()
}

func (s *Slots) warnExpiringLocked() {
	now := s.config.Now()
	for _, kind := range s.config.Kinds {
		k := s.slots[kind]
		for _, m := range k.state().Modules {
			a := k.about[m.Generation]
			if a == nil || m.Phase < lifecycle.Warm || m.Phase > lifecycle.Active ||
				!a.warned.IsZero() && now.Sub(a.warned) < warnEvery {
				continue
			}
			if text := a.expiry(now); text != "" {
				a.warned = now
				s.config.Logger.Warn("policy statement expires", "kind", kind.String(), "generation", m.Generation,
					"name", a.statement.Name, "reason", text)
			}
		}
	}
}
