package slothost

import (
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/wasm/promotion"
)

const (
	// warnBefore is how long before the end of a statement its module's status and
	// the log tell of it.
	warnBefore = 7 * 24 * time.Hour
	// warnEvery is how often the log does.
	warnEvery = 24 * time.Hour
	// lookForEnds is how often somebody looks.
	lookForEnds = time.Hour
)

// ends tells of the end of a generation's statement, "" while that is far.
func (a *about) ends(now time.Time) string {
	if a.notAfter == 0 {
		return ""
	}
	end := time.Unix(a.notAfter, 0)
	text := end.UTC().Format(time.RFC3339)
	switch {
	case now.Unix() > a.notAfter:
		return fmt.Sprintf("its statement expired at %s: what the fleet runs goes on; sign it anew and push it", text)
	case end.Sub(now) <= warnBefore:
		return fmt.Sprintf("its statement expires at %s: sign it anew and push it", text)
	}
	return ""
}

// warn tells the log of modules that are there and whose statements end.
func (s *Set) warn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.warnLocked()
}

func (s *Set) warnLocked() {
	now := s.config.Now()
	for _, kind := range s.config.Kinds {
		k := s.slots[kind]
		for _, l := range k.slot.Status().Lives {
			a := k.about[uint64(l.Generation)]
			if a == nil || l.State < promotion.IsWarm || l.State > promotion.IsActive || !a.told.IsZero() && now.Sub(a.told) < warnEvery {
				continue
			}
			if text := a.ends(now); text != "" {
				a.told = now
				s.config.Logger.Warn("policy expires", "kind", kind.String(), "generation", uint64(l.Generation), "name", a.name, "why", text)
			}
		}
	}
}
