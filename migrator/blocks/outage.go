package blocks

import (
	"log/slog"
	"time"
)

// warnAfter is how long an engine may be away before it is worth a warning: one
// that begins or is replaced is there sooner, and nothing is wrong.
const warnAfter = 5 * time.Second

// outage is a time without the engine's block table; the zero value is none.
type outage struct {
	since  time.Time
	warned bool
}

// log logs one line when an absence is first seen and, at the level of
// warnings, one more when it lasts.
func (a *outage) log(now time.Time, log *slog.Logger, dir string, err error) {
	switch {
	case a.since.IsZero():
		a.since = now
		log.Info("the engine's block table is away", "dir", dir, "error", err)
	case !a.warned && now.Sub(a.since) >= warnAfter:
		a.warned = true
		log.Warn("the engine's block table stays away; its requests move by re-prompting", "for", now.Sub(a.since).Round(time.Second), "dir", dir, "error", err)
	}
}
