package planner

import (
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/policies/partition"
)

// ReplicaView is one replica of the model with its last report.
type ReplicaView struct {
	policies.Replica
	// Stage is its stage in the plan in force; -1: none.
	Stage int
	// Ready says that it may take new requests, and Leaving that it has to leave its stage.
	// It is never both. A replica that is neither keeps its place for a while.
	Ready, Leaving bool
	// DrainOrdered says that the configuration or an operator drains it, as opposed to its own
	// migrator, and Removed that it is no longer configured.
	DrainOrdered, Removed bool
	Topology              links.Topology
	Seen                  uint64 // requests that its front end has counted, in all its processes
	Refused               uint64 // requests that it refused since it is known, because they would have waited for too long

	// Reported says that there is a report, and Age how old it is. Restored says that only its
	// flow is known, from an earlier process of the control plane.
	Reported, Restored bool
	Age                policies.Micros
	Load               policies.Load
	Flow               policies.Flow    // without edges while nothing is counted
	Snapshot           []policies.Batch // in flight, by bucket of Flow; nil if not reported
	Proposal           partition.BoundaryProposal
}

// Work returns the tokens that the replica holds or has promised to hold.
func (r *ReplicaView) Work() policies.Tokens { return r.Load.Held + r.Load.Promised }

// MayJoin reports whether the replica may be in a stage at all.
func (r *ReplicaView) MayJoin() bool { return !r.Prefill && !r.Leaving }

// View is what a control plane knows of the replicas of a model at one moment,
// and the sums over them: the flow, the requests in flight, the pace and the held tokens of
// each stage, and the boundaries that the replicas propose. A Planner makes plans of it.
//
// The owner of the reports builds a View whenever something is to be decided: in production
// xds/internal/fleetstate, in virtual time the simulator, from the loads, flows and snapshots
// that its replicas would report. It reads no clock: of each report only its age
// counts. Everything in it is a pure function of the View.
//
// Replicas are in the order in which they were configured first. Those
// that are no longer configured are included as long as the plan names them or their flow
// counts.
type View struct {
	Replicas []ReplicaView
	// Grace is how long a report counts, and HalfLife that of the flow of a replica that no
	// longer reports. Both must be positive.
	Grace, HalfLife policies.Micros

	index map[policies.ReplicaID]int // of Replicas; built when needed
}

// Reset empties the view and keeps its memory.
func (v *View) Reset() {
	v.Replicas = v.Replicas[:0]
	clear(v.index)
}

// Get returns the replica with an id, or nil. Reset must be called before Replicas is filled
// with others.
func (v *View) Get(id policies.ReplicaID) *ReplicaView {
	if len(v.index) != len(v.Replicas) {
		if v.index == nil {
			v.index = make(map[policies.ReplicaID]int, len(v.Replicas))
		}
		for i := range v.Replicas {
			v.index[v.Replicas[i].ID] = i
		}
	}
	if i, ok := v.index[id]; ok {
		return &v.Replicas[i]
	}
	return nil
}

// fresh reports whether the replica's last report is recent enough to count.
func (v *View) fresh(r *ReplicaView) bool { return r.Reported && r.Age <= v.Grace }

// loadKnown reports whether the replica serves and its load is known.
func (v *View) loadKnown(r *ReplicaView) bool { return r.Ready && !r.Restored && v.fresh(r) }

// Flow sums the flows of the replicas with these buckets. Draining and silent replicas still
// count, because their work will return on other replicas; late ones fade.
func (v *View) Flow(edges []policies.Tokens) policies.Flow {
	return v.sumFlows(edges, func(_ *ReplicaView, flow policies.Flow) (policies.Flow, bool) { return flow, true })
}

// StageFlow is Flow without the prompts that prefill replicas compute: the work of the
// stages.
func (v *View) StageFlow(edges []policies.Tokens) policies.Flow {
	return v.sumFlows(edges, func(r *ReplicaView, flow policies.Flow) (policies.Flow, bool) {
		if r.Prefill {
			none := policies.NewFlow(edges)
			flow.Prefill, flow.Prefill2 = none.Prefill, none.Prefill2
		}
		return flow, true
	})
}

// PrefillFlow is the flow of the prefill replicas alone.
func (v *View) PrefillFlow(edges []policies.Tokens) policies.Flow {
	return v.sumFlows(edges, func(r *ReplicaView, flow policies.Flow) (policies.Flow, bool) { return flow, r.Prefill })
}

// sumFlows sums what part returns of the replicas' flows; false leaves a replica's out.
func (v *View) sumFlows(edges []policies.Tokens, part func(*ReplicaView, policies.Flow) (policies.Flow, bool)) policies.Flow {
	sum := policies.NewFlow(edges)
	for i := range v.Replicas {
		r := &v.Replicas[i]
		sum.Seen += r.Seen
		if !r.Reported || !slices.Equal(r.Flow.Edges, edges) {
			continue
		}
		if w := Fade(r.Age, v.Grace, v.HalfLife); w > 0 {
			if flow, ok := part(r, r.Flow); ok {
				addFaded(sum, flow, w)
			}
		}
	}
	return sum
}

// Fade returns the weight of a flow whose last report has this age: 1 within the grace,
// then halved per half life; 0 when too little is left to plan on.
func Fade(age, grace, halfLife policies.Micros) float64 {
	if age <= grace {
		return 1
	}
	w := math.Exp2(-float64(age-grace) / float64(halfLife))
	if w < 1.0/64 {
		return 0
	}
	return w
}

// addFaded adds w times flow o to sum, cell by cell; both have sum's edges.
func addFaded(sum, o policies.Flow, w float64) {
	from := o.Columns()
	for i, c := range sum.Columns() {
		for b := range c {
			c[b] += float64(w * from[i][b])
		}
	}
}
