package fleetstate

import (
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Reason is why a replica has its health.
type Reason uint8

// The reasons. ReasonReady and ReasonAssumed are those of healthy replicas.
const (
	ReasonReady       Reason = iota
	ReasonAssumed            // it has not reported since this control plane started, for less than the grace
	ReasonNoReport           // it has not reported since this control plane started
	ReasonLate               // its last report is older than the grace
	ReasonEngine             // its engine does not answer health checks
	ReasonHung               // its engine answers health checks, and makes no progress
	ReasonMismatch           // its engine is not the one of the fleet file
	ReasonUnreachable        // all requests that proxies send to its address fail
	ReasonFile               // the fleet file drains it
	ReasonOperator           // an operator drains it
	ReasonStops              // its migrator stops
	ReasonSilent             // the fleet file or an operator drains it, and its migrator does not report
	ReasonRemoved            // it is no longer in the fleet file
	reasons
)

// String returns the reason as a label of metrics.
func (r Reason) String() string {
	return [reasons]string{"ready", "assumed_ready", "no_report", "report_late", "engine_down", "engine_hung", "engine_mismatch", "unreachable", "drained_by_file", "drained_by_operator", "migrator_stops", "drained_silent", "removed"}[r]
}

// silentAdvice is what an operator can do about a migrator that does not report.
const silentAdvice = ": start it, or remove the replica from the fleet file"

// startGrace is how long a starting migrator may take to report that its engine answers.
const startGrace = 2 * time.Second

// Faulty reports whether something is wrong with the replica. A start is no fault. A drain is one only if
// the migrator does not report, because then the replica would not come back when it is undrained.
func (r *Replica) Faulty(now time.Time) bool {
	starts := r.starting && (r.Reason == ReasonEngine || r.Reason == ReasonNoReport) && now.Sub(r.HealthSince) < startGrace
	return r.Health == resources.Unhealthy && !starts || r.Reason == ReasonSilent
}

// HealthReason explains the replica's health; it is empty for one that is ready.
func (r *Replica) HealthReason() string {
	switch r.Reason {
	case ReasonAssumed:
		return "it has not reported yet; a control plane that has just started assumes what was stored of it"
	case ReasonNoReport:
		return "its migrator has not reported to this control plane: check that it runs and reaches control.listen and control.peers"
	case ReasonLate:
		if r.Connected {
			return "its migrator has stopped reporting; its report stream is open, so it may hang: restart it"
		}
		return "its migrator has stopped reporting; its report stream is closed" + silentAdvice
	case ReasonEngine:
		if r.Engine == "" {
			return "its engine does not answer health checks: check that it runs"
		}
		return "its engine does not answer health checks: check that it runs and listens at " + r.Engine
	case ReasonHung:
		return "its engine answers health checks and makes no progress: restart it"
	case ReasonMismatch:
		return r.Report.EngineProblem
	case ReasonUnreachable:
		return fmt.Sprintf("every request that proxies sent to its address, %s, failed, and its front end counted none: check its address in the fleet file, and the network", r.Address)
	case ReasonFile:
		return "the fleet file drains it"
	case ReasonOperator:
		return "an operator drains it"
	case ReasonStops:
		return "its migrator stops"
	case ReasonSilent:
		return "it is drained, and its migrator does not report" + silentAdvice
	case ReasonRemoved:
		return "it is no longer in the fleet file"
	}
	return ""
}

// HealthChange is a change of a replica's health, or of the reason for it.
type HealthChange struct {
	Replica  policies.ReplicaID
	Model    string
	From, To resources.Health
	Reason   string        // see Replica.HealthReason
	Lasted   time.Duration // how long the state before it lasted
	// Starting says that the replica has not been healthy before, as far as is known: From
	// was only assumed, or To is Healthy for the first time.
	Starting bool
}

// assess returns the health that the replica has now, and why.
func (r *Replica) assess(now time.Time, grace time.Duration) (resources.Health, Reason) {
	silent := r.reported && !r.fresh(now, grace) || !r.reported && !now.Before(r.assumedReady)
	switch {
	case r.Removed:
		return resources.Draining, ReasonRemoved
	case r.DrainOrdered() && silent:
		return resources.Draining, ReasonSilent
	case r.Draining:
		return resources.Draining, ReasonFile
	case r.Drained:
		return resources.Draining, ReasonOperator
	case !r.reported && !silent:
		return r.stored.health, ReasonAssumed
	case !r.reported:
		return resources.Unhealthy, ReasonNoReport
	case silent:
		return resources.Unhealthy, ReasonLate
	case r.Report.Draining:
		return resources.Draining, ReasonStops
	case r.Report.EngineHung:
		return resources.Unhealthy, ReasonHung
	case !r.Report.EngineReady && r.Report.EngineProblem != "":
		return resources.Unhealthy, ReasonMismatch
	case !r.Report.EngineReady:
		return resources.Unhealthy, ReasonEngine
	case now.Before(r.reach.downUntil):
		return resources.Unhealthy, ReasonUnreachable
	}
	return resources.Healthy, ReasonReady
}

// refresh recomputes the replica's health. changed reports that the health is another
// one; change describes a new health or another reason, except when the replica's
// health is determined for the first time.
func (r *Replica) refresh(now time.Time, grace time.Duration) (changed bool, change *HealthChange) {
	health, reason := r.assess(now, grace)
	first := r.HealthSince.IsZero()
	if health == r.Health && reason == r.Reason && !first {
		return false, nil
	}
	changed = health != r.Health
	was, since, starting := r.Health, r.HealthSince, r.starting
	switch {
	case first:
		r.starting = reason == ReasonNoReport || reason == ReasonEngine
	case changed:
		r.starting = r.Reason == ReasonAssumed && reason == ReasonEngine
	}
	r.Health, r.Reason = health, reason
	if changed || first {
		r.HealthSince = now
	}
	if first || health == resources.Healthy && !changed {
		return changed, nil
	}
	if changed {
		r.HealthChanges[health]++
	}
	return changed, &HealthChange{Replica: r.ID, Model: r.Model, From: was, To: health, Reason: r.HealthReason(), Lasted: now.Sub(since), Starting: starting || r.starting}
}
