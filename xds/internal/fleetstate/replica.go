package fleetstate

import (
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/policies/links"
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
	Weight     uint32           // to be served; see Registry.ServedWeight
	Health     resources.Health // as of the last Refresh
	Reason     Reason           // for Health
	// HealthSince is when Health began, and HealthChanges how often each began, but for
	// the first.
	HealthSince   time.Time
	HealthChanges [resources.Unhealthy + 1]uint64
	Estimate      balance.Estimate // of its load, as of the last event

	reported     bool               // since the program started
	assumedReady time.Time          // until then a replica that has not reported counts as ready
	earlierSeen  uint64             // requests seen by earlier processes of the front end
	ended        uint64             // requests ended since the first report to this process
	refused      uint64             // requests refused since then
	service      loadreport.Service // of clients since then
	stored       served             // what the stored object says
	reach        reach              // as proxies see it
	starting     bool               // unhealthy, and not known to have been healthy before
	note         string             // what is wrong with its reports
	estimator    balance.Estimator
	topology     links.Topology // as last reported; the zero value: never
	kv           kvCache
	configuredKV policies.Tokens // the configuration's Capacity.KV
}

// fresh reports whether the last report is recent enough to count.
func (r *Replica) fresh(now time.Time, grace time.Duration) bool {
	return !r.ReportedAt.IsZero() && now.Sub(r.ReportedAt) <= grace
}

// Ready reports whether the replica may take new requests.
func (r *Replica) Ready() bool { return r.Health == resources.Healthy }

// DrainingNow reports whether the replica has to leave its stage.
func (r *Replica) DrainingNow() bool { return r.Health == resources.Draining }

// DrainOrdered reports whether the configuration or an operator drains the replica,
// as opposed to its own migrator, which drains when it stops.
func (r *Replica) DrainOrdered() bool { return r.Draining || r.Drained }

// HandleReport replaces the last report. sameBuckets says that its flow has the
// buckets of the control plane, or none; context is its model's longest sequence. It
// returns true if the replica reported another topology than before, or if another size of
// its KV cache counts now.
func (r *Replica) HandleReport(now time.Time, report *loadreport.Report, sameBuckets bool, context policies.Tokens) (topologyChanged, resized bool) {
	r.note = report.Note
	r.kv.record(now, report, context)
	resized = r.applyReportedKV()
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
	if r.reported {
		r.ended = min(r.ended+grown(r.Report.Flow.Seen, report.Flow.Seen), loadreport.MaxSeen)
		r.refused = min(r.refused+grown(r.Report.Refused, report.Refused), loadreport.MaxSeen)
		r.service = r.service.Plus(report.Service.Since(r.Report.Service))
	}
	r.Report, r.ReportedAt, r.Connected, r.reported = *report, now, true, true
	if !sameBuckets {
		r.Report.Snapshot = nil
	}
	return topologyChanged, resized
}

// reset forgets what was reported while the replica served another model: it is
// unready until its migrator reports for the new one.
func (r *Replica) reset() {
	*r = Replica{Replica: r.Replica, Drained: r.Drained, Stage: -1, Connected: r.Connected, Weight: balance.NeutralWeight, Health: resources.Unhealthy, stored: r.stored, topology: r.topology}
}

// EstimateLoad feeds the replica's load estimator with an event.
func (r *Replica) EstimateLoad(now policies.Micros, limits balance.Engine, ev balance.Event) {
	r.Estimate = r.estimator.Step(now, limits, ev)
}

// Claim returns the last report's load as an event for EstimateLoad.
func (r *Replica) Claim() balance.Claim {
	l := r.Report.Load
	return balance.Claim{
		Running: l.Running, Waiting: l.Waiting, Streams: r.Report.DrainProgress.Streams,
		Held: l.Held, Promised: l.Promised, Bounded: r.Report.LoadBounded,
	}
}

// Service returns how the clients of the front end were served since its first report to this process.
func (r *Replica) Service() loadreport.Service { return r.service }

// grown returns by how much a counter of a front end has grown, or 0 if the front end has restarted it.
func grown(before, now uint64) uint64 { return max(now, before) - before }

// Counted returns how many requests have ended since the first report to this process, and how many were
// refused because they would have waited for too long.
func (r *Replica) Counted() (ended, refused uint64) { return r.ended, r.refused }

// Seen counts the requests of all processes of the front end.
func (r *Replica) Seen() uint64 { return r.earlierSeen + r.Report.Flow.Seen }

// Fresh reports whether the replica has reported to this process, recently enough to count.
func (g *Registry) Fresh(now time.Time, r *Replica) bool {
	return r.reported && r.fresh(now, g.cfg.Grace)
}

// Problems returns what the replica's migrator lacks, and what is wrong with its reported KV
// cache; nil once its last report is too old.
func (g *Registry) Problems(now time.Time, r *Replica) []loadreport.Problem {
	if !g.Fresh(now, r) {
		return nil
	}
	if p, ok := r.kvProblem(); ok {
		return append(slices.Clone(r.Report.Problems), p)
	}
	return r.Report.Problems
}

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
