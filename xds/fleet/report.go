package fleet

import (
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// CheckReport returns an error for a report whose replica is not configured or
// serves another model.
func (s *State) CheckReport(report loadreport.Report) error { return s.registry.CheckReport(report) }

// Reply answers the last report of a replica; ok is false for one that is not
// configured.
func (s *State) Reply(id policies.ReplicaID) (reply loadreport.Reply, ok bool) {
	r := s.registry.Get(id)
	if r == nil || r.Removed {
		return loadreport.Reply{}, false
	}
	m := s.model(r.Model)
	reply = loadreport.Reply{Epoch: m.planner.Plan().Epoch, MeanHeld: float64(r.Report.Load.Held), Drain: r.DrainOrdered(), PrefillRanges: m.planner.PrefillRanges()}
	if mean, ok := m.planner.MeanHeld(r.Stage); ok {
		reply.MeanHeld = mean
	}
	// A replica with other buckets could not use the batches of the boundary.
	if slices.Equal(r.Report.Flow.Edges, m.Edges) {
		reply.Boundary = m.planner.Boundary(r.Stage)
	}
	return reply, true
}

// handleReport applies a replica's report.
func (s *State) handleReport(now time.Time, report *loadreport.Report) {
	r := s.registry.Get(report.Replica)
	if r == nil {
		return
	}
	edges := report.Flow.Edges
	sameBuckets := len(edges) == 0 || slices.Equal(edges, s.model(r.Model).Edges)
	before, known := r.Seen(), !r.ReportedAt.IsZero()
	topologyChanged, resized := r.HandleReport(now, report, sameBuckets, s.model(r.Model).Context)
	if topologyChanged {
		s.resetDistances()
	}
	if resized {
		s.publishPending = true // other migrators need to know
	}
	if known || s.lease == nil { // of requests before the first report, others may have counted some
		s.model(r.Model).requests += max(r.Seen(), before) - before
	}
	s.estimateLoad(now, r, r.Claim())
	s.refresh(now, r)
}

// refresh recomputes a replica's health.
func (s *State) refresh(now time.Time, r *fleetstate.Replica) {
	changed, change := s.registry.Refresh(now, r)
	if changed {
		s.needsRepair, s.healthChanged, s.publishPending = true, true, true
	}
	if change != nil {
		s.healthChanges = append(s.healthChanges, *change)
	}
}
