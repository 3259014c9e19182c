package registry

import (
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/xds/internal/loadestimate"
	"github.com/cascadeinfer/cascade/xds/internal/weights"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Replica is one replica and its last report.
type Replica struct {
	policies.Replica
	// Removed is true once the replica is out of the configuration. It stays listed
	// as draining until no plan names it, and its flow is forgotten slowly.
	Removed    bool
	Drained    bool // by an operator; policies.Replica.Draining is the configuration's
	Stage      int  // in the plan in force; -1: none
	Report     loadreport.Report
	ReportedAt time.Time        // when Report came; zero: never
	Connected  bool             // a report stream is open
	Weight     uint32           // to be served; see Registry.Served
	Health     resources.Health // as of the last Refresh
	Reason     Reason           // for Health
	// HealthSince is when Health began, and HealthChanges how often each began, but for
	// the first.
	HealthSince   time.Time
	HealthChanges [resources.Unhealthy + 1]uint64
	Estimate      loadestimate.Estimate // of its load, as of the last event

	reported     bool      // since the program started
	assumedReady time.Time // until then a replica that has not reported counts as ready
	earlierSeen  uint64    // requests seen by earlier processes of the front end
	stored       served    // what the stored object says
	reach        reach     // as proxies see it
	starting     bool      // unhealthy, and not known to have been healthy before
	note         string    // what is wrong with its reports
	estimator    loadestimate.Estimator
	topology     links.Topology // as last reported; the zero value: never
	// kv is the reported size of the KV cache that counts; 0: never reported. kvReported is the
	// last reported one, and kvSince since when it has been the same.
	kv, kvReported policies.Tokens
	kvSince        time.Time
}

// steadyKV is how long a replica must have reported another size of its KV cache before that
// counts. An engine changes it only by a restart: one that swings would make and unmake plans.
const steadyKV = 10 * time.Second

// fresh reports whether the last report is recent enough to count.
func (r *Replica) fresh(now time.Time, grace time.Duration) bool {
	return !r.ReportedAt.IsZero() && now.Sub(r.ReportedAt) <= grace
}

// loadKnown reports whether the replica serves and its load is known: restored counters
// are no load.
func (r *Replica) loadKnown(now time.Time, grace time.Duration) bool {
	return r.Ready() && r.reported && r.fresh(now, grace)
}

// Ready reports whether the replica may take new requests.
func (r *Replica) Ready() bool { return r.Health == resources.Healthy }

// DrainingNow reports whether the replica has to leave its stage.
func (r *Replica) DrainingNow() bool { return r.Health == resources.Draining }

// DrainOrdered reports whether the configuration or an operator drains the replica,
// as opposed to its own migrator, which drains when it stops.
func (r *Replica) DrainOrdered() bool { return r.Draining || r.Drained }

// HandleReport replaces the last report. sameBuckets says that its flow has the
// buckets of the control plane, or none. It returns true if the replica reported
// another topology than before, or if another size of its KV cache counts now.
func (r *Replica) HandleReport(now time.Time, report *loadreport.Report, sameBuckets bool) (topologyChanged, resized bool) {
	r.note = report.Note
	if kv := report.Load.Engine.Capacity; kv > 0 {
		if kv != r.kvReported {
			r.kvReported, r.kvSince = kv, now
		}
		if r.kv == 0 || now.Sub(r.kvSince) >= steadyKV {
			r.kv = kv
			resized = r.applyReportedKV()
		}
	}
	if !sameBuckets {
		r.note = "flow ignored: its buckets are not those of the control plane; configure the same context for both"
	}
	if report.Topology != nil && !r.topology.Equal(*report.Topology) {
		r.topology, topologyChanged = *report.Topology, true
	}
	if r.note == "" && r.topology.Host != "" && r.topology.Host != r.Host {
		r.note = "it reports that it is on host " + r.topology.Host + ", the configuration says " + r.Host
	}
	if report.Flow.Seen < r.Report.Flow.Seen {
		r.earlierSeen = min(r.earlierSeen+r.Report.Flow.Seen, loadreport.MaxSeen) // the front end has restarted
	}
	r.Report, r.ReportedAt, r.Connected, r.reported = *report, now, true, true
	if !sameBuckets {
		r.Report.Snapshot = nil
	}
	return topologyChanged, resized
}

// applyReportedKV replaces the configured size of the KV cache by the reported one, in which
// the migrator has respected what the fleet file states. It returns true if it differs.
func (r *Replica) applyReportedKV() bool {
	if r.kv == 0 || r.Capacity.KV == r.kv {
		return false
	}
	r.Capacity.KV = r.kv
	return true
}

// reset forgets what was reported while the replica served another model: it is
// unready until its migrator reports for the new one.
func (r *Replica) reset() {
	*r = Replica{Replica: r.Replica, Drained: r.Drained, Stage: -1, Connected: r.Connected, Weight: weights.Neutral, Health: resources.Unhealthy, stored: r.stored, topology: r.topology}
}

// EstimateLoad feeds the replica's load estimator with an event.
func (r *Replica) EstimateLoad(now time.Time, limits loadestimate.Replica, ev loadestimate.Event) {
	r.Estimate = r.estimator.Step(now, limits, ev)
}

// Claim returns the last report's load as an event for EstimateLoad.
func (r *Replica) Claim() loadestimate.Claim {
	l := r.Report.Load
	return loadestimate.Claim{
		Running: l.Running, Waiting: l.Waiting, Streams: r.Report.DrainProgress.Streams,
		Held: l.Held, Promised: l.Promised, Bounded: r.Report.LoadBounded,
	}
}

// Seen counts the requests of all processes of the front end.
func (r *Replica) Seen() uint64 { return r.earlierSeen + r.Report.Flow.Seen }

// Problems returns what the replica's migrator lacks; nil once its last report is too old.
func (g *Registry) Problems(now time.Time, r *Replica) []loadreport.Problem {
	if !r.reported || !r.fresh(now, g.cfg.Grace) {
		return nil
	}
	return r.Report.Problems
}

// Work returns the tokens that the replica holds or has promised to hold.
func (r *Replica) Work() policies.Tokens { return r.Report.Load.Held + r.Report.Load.Promised }

// Topology returns where the replica is: as reported, except for the host, which the
// configuration determines.
func (r *Replica) Topology() links.Topology {
	s := r.topology
	s.Host = r.Host
	return s
}

// Note returns what is wrong with the replica's reports; it is usually empty.
func (r *Replica) Note() string {
	if r.Estimate.Distrusted == "" {
		return r.note
	}
	note := "distrusted, its weight returns to neutral: it reports " + r.Estimate.Distrusted
	if r.note != "" {
		note += "; " + r.note
	}
	return note
}
