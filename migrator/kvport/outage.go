package kvport

import (
	"fmt"
	"log/slog"
	"time"
)

// warnAfter is the length of an outage after which it is logged as a warning: a starting or
// restarting engine is available earlier.
const warnAfter = 5 * time.Second

// outage is a time without the engine; the zero value is none.
type outage struct {
	since  time.Time
	cause  string // that was logged
	warned bool
}

// log logs each cause at level info, and a warning when the outage lasts.
func (a *outage) log(now time.Time, log *slog.Logger, dir string, err error) {
	if a.since.IsZero() {
		a.since = now
	}
	if text := fmt.Sprint(err); text != a.cause {
		a.cause = text
		log.Info("engine's KV port unavailable", "dir", dir, "error", err)
	}
	if !a.warned && now.Sub(a.since) >= warnAfter {
		a.warned = true
		log.Warn("engine's KV port still unavailable; its requests migrate by re-prompting", "for", now.Sub(a.since).Round(time.Second), "dir", dir, "error", err)
	}
}
