package blocks

import (
	"log/slog"
	"time"
)

// warnAfter is the length of an outage after which it is logged as a warning: a starting or
// restarting engine is available earlier.
const warnAfter = 5 * time.Second

// outage is a time without the engine's block table; the zero value is none.
type outage struct {
	since  time.Time
	warned bool
}

// log logs the start of an outage at level info, and once more as a warning when it lasts.
func (a *outage) log(now time.Time, log *slog.Logger, dir string, err error) {
	switch {
	case a.since.IsZero():
		a.since = now
		log.Info("engine block table unavailable", "dir", dir, "error", err)
	case !a.warned && now.Sub(a.since) >= warnAfter:
		a.warned = true
		log.Warn("engine block table still unavailable; its requests migrate by re-prompting", "for", now.Sub(a.since).Round(time.Second), "dir", dir, "error", err)
	}
}
