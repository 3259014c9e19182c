package fleet

import (
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Snapshot is the whole fleet at one moment, for proxies and for operators. It is
// immutable and may be shared freely.
type Snapshot struct {
	Time    time.Time
	Epoch   policies.Epoch      // of the newest plan in force
	Models  []ModelState        // in the order of the configuration
	History []fleetstate.Change // oldest first, bounded; see Change.Replaces
	// FormerPlans are the plans that an operator may return to, the oldest first.
	FormerPlans []store.FormerPlan
	Leadership  Leadership
	Held        *HeldRemoval // nil: the last configured list is applied
}

// ModelState is one model of a Snapshot.
type ModelState struct {
	resources.Model // as served: with the ratio that was learnt
	Plan            policies.Plan
	// Reason is why Plan replaced the one before. Planner is the decision of the last
	// planning period with its reason, also when it kept the plan.
	Reason, Planner string
	Pin             *store.Pin // nil: none
	// Scaling is how many replicas the model should have; Desired is 0 until the first period.
	Scaling Scaling
	Demand  Demand // of the last seconds
	// Service is how clients were served within the last minute.
	Service Service
	// StageReasons are why Plan has its stages, in their order; nil where that is not known.
	StageReasons []partition.StageReason
	// Workload is what was last planned for, or what would be: where there was no period yet, or another
	// control plane plans.
	Workload policies.Workload
	// LearntBytesPerToken is learnt from the present reports (0: none yet).
	LearntBytesPerToken length.Ratio
	// EstimateError is the mean relative error of the length estimate.
	EstimateError float64
	Refining      bool          // replicas propose boundaries between two plans
	Seen          uint64        // requests counted so far; it never decreases
	Flow          policies.Flow // summed over the replicas
	Replicas      []ReplicaState
	// Links are the rates for replicas that report no links; the zero value where links
	// make no difference.
	Links links.Rates
}

// ReplicaState is one replica of a Snapshot.
type ReplicaState struct {
	resources.Endpoint
	Stage int // index in the plan; -1: in no stage
	// HealthSince is when Health began; Reason is a label for why, HealthReason a
	// sentence, empty for a replica that is ready. HealthChanges counts how often each
	// health began, but for the first.
	HealthSince   time.Time
	Reason        string
	HealthReason  string
	Faulty        bool // something is wrong with it: see registry.Replica.Faulty
	HealthChanges [resources.Unhealthy + 1]uint64
	Load          policies.Load
	Reported      time.Time // zero: never
	// Connected says that a report stream is open.
	Connected bool
	Note      string // what is wrong with its reports; usually empty
	// Problems are what its migrator lacks, as far as its last report still counts.
	Problems []loadreport.Problem
	Engine   loadreport.Engine // what its engine says of itself
	// KnownPrefixes is what it knows of the prompts that its engine has cached.
	KnownPrefixes loadreport.KnownPrefixes
	// Estimate is the estimate of its load; its weight follows it.
	Estimate balance.Estimate
	// Drained says that an operator drains it; Replica.Draining says that the
	// configuration does.
	Drained bool
	// Stopping says that its migrator accepts no new request because it stops.
	Stopping bool
	loadreport.DrainProgress
	Routes   []loadreport.Route // the routes over which it may pull blocks
	Topology links.Topology     // where its KV cache is
}

// View returns the routing part of the snapshot under the given settings.
func (s *Snapshot) View(settings resources.Settings) resources.View {
	v := resources.View{Settings: settings}
	for _, m := range s.Models {
		v.Models, v.Plans = append(v.Models, m.Model), append(v.Plans, m.Plan)
		for _, r := range m.Replicas {
			v.Endpoints = append(v.Endpoints, r.Endpoint)
		}
	}
	return v
}

// Model returns the state of a model, or nil.
func (s *Snapshot) Model(name string) *ModelState {
	for i := range s.Models {
		if s.Models[i].Name == name {
			return &s.Models[i]
		}
	}
	return nil
}

// plannedFor returns the workload of the planner's last period or, if there was none, of the last recommendation.
func (s *State) plannedFor(now time.Time, m *model) policies.Workload {
	for _, w := range [...]policies.Workload{m.planner.Workload(), m.workload} {
		if len(w.Flow.Edges) > 0 {
			return w
		}
	}
	return m.planner.ScaleSample(s.registry.View(now, m.Name)).Workload // before the first tick
}

// Snapshot returns the state as it is.
func (s *State) Snapshot(now time.Time) *Snapshot {
	snap := &Snapshot{
		Time: now, Epoch: s.epoch, History: slices.Clone(s.history),
		FormerPlans: s.object.FormerPlans, Leadership: s.leadership(now), Held: s.held,
	}
	for _, m := range s.models {
		state := ModelState{
			Model: m.Model.Model, Plan: m.planner.Plan(), Reason: m.reason, Planner: m.planner.Status(), StageReasons: m.planner.Reasons(), Workload: s.plannedFor(now, m), Flow: s.registry.View(now, m.Name).Flow(m.Edges),
			Refining: s.rules.refines(), Pin: fleetstate.PinOf(s.object, m.Name), Links: m.Links, Scaling: m.scaling, Demand: m.demand.demand, Service: m.service.last,
		}
		state.BytesPerToken = m.ratio
		state.LearntBytesPerToken, state.EstimateError = s.registry.LearntRatio(now, m.Name)
		state.Seen = m.requests
		for _, r := range s.registry.All() {
			if r.Model != m.Name || r.Removed && r.Stage < 0 {
				continue
			}
			state.Replicas = append(state.Replicas, ReplicaState{
				Endpoint: resources.Endpoint{Replica: r.Replica, Weight: s.registry.ServedWeight(r), Health: r.Health}, Stage: r.Stage,
				HealthSince: r.HealthSince, Reason: r.Reason.String(), HealthReason: r.HealthReason(), Faulty: r.Faulty(now), HealthChanges: r.HealthChanges,
				Load: r.Report.Load, Reported: r.ReportedAt, Connected: r.Connected, Note: r.Note(), Estimate: r.Estimate,
				Engine: r.Report.Engine, KnownPrefixes: r.Report.KnownPrefixes, Problems: s.registry.Problems(now, r), Drained: r.Drained, Stopping: r.Report.Draining && s.registry.Fresh(now, r), DrainProgress: r.Report.DrainProgress, Routes: r.Report.Routes, Topology: r.Topology(),
			})
		}
		snap.Models = append(snap.Models, state)
	}
	return snap
}
