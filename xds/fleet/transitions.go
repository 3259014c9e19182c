package fleet

import (
	"log/slog"
	"time"

	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// logChanges logs what an event has changed.
func (f *Fleet) logChanges(e Effects) {
	f.logHealth(e.Health)
	if e.Leader != nil {
		f.logLeader(e.Leader)
	}
}

// logHealth logs changes of replicas' health, each once. An unhealthy replica, and its
// return, are logged at warn, so that they are in the log at its usual level; one that is
// merely starting is not.
func (f *Fleet) logHealth(list []fleetstate.HealthChange) {
	for _, c := range list {
		args := []any{"replica", c.Replica, "model", c.Model, "was", c.From, "for", c.Lasted.Round(time.Millisecond)}
		if c.Reason != "" {
			args = append(args, "reason", c.Reason)
		}
		switch {
		case c.From == c.To:
			f.log.Info("replica's health has another reason", args...)
		case c.Starting && c.To == resources.Unhealthy:
			f.log.Info("replica is not ready yet", "replica", c.Replica, "model", c.Model, "reason", c.Reason)
		case c.Starting && c.To == resources.Healthy:
			f.log.Info("replica is ready", "replica", c.Replica, "model", c.Model)
		case c.To == resources.Unhealthy:
			f.log.Warn("replica is unhealthy", args...)
		case c.To == resources.Draining:
			f.log.Info("replica is draining", args...)
		case c.From == resources.Unhealthy:
			f.log.Warn("replica is healthy again", args...)
		default:
			f.log.Info("replica takes requests again", args...)
		}
	}
}

// logLeader logs that another control plane leads, or none, once. All but the start of
// a fleet is logged at warn.
func (f *Fleet) logLeader(c *LeaderChange) {
	name := slog.String("name", f.cfg.Name)
	switch {
	case c.To == "" && c.Released:
		f.log.Info("leader has stopped and released its lease", name, "leader", c.From)
	case c.To == "":
		f.log.Warn("fleet has no leader: the lease was not renewed in time", name, "last_leader", c.From)
	case c.From != "" && c.From != c.To && c.To == f.cfg.Name:
		f.log.Warn("became the leader after another control plane, planning for the fleet", name, "from", c.From)
	case c.From != "" && c.From != c.To:
		f.log.Warn("another control plane became the leader", name, "leader", c.To, "from", c.From)
	default:
		f.log.Info("fleet has a leader", name, "leader", c.To)
	}
}

// logHeld logs a configured list that has to be confirmed, once.
func (f *Fleet) logHeld() {
	held := f.state.held
	if held != nil && held.Digest != f.heldLogged {
		f.log.Error("fleet file not applied: it removes more than half of a model's replicas; if that is meant, run \"cascade config check --confirm\"", "removes", held.Text, "digest", held.Digest)
	}
	if f.heldLogged = ""; held != nil {
		f.heldLogged = held.Digest
	}
}
