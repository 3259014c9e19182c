// Package fleetstate is what a control plane knows of its fleet: replicas (Registry), the decisions about plans and the
// former plans (Change, FormerPlan), migrations (MigrationLog), and the orders of operators (Order), which it checks
// against the present state. It reads no clock and does no I/O.
//
// A Registry keeps the configured replicas of a fleet with the last report of
// each, from which View makes what policies decide on. It is fed by its owner with the
// configured list (Configure), reports (Replica.HandleReport) and stored objects
// (ApplyStored). It is not safe for concurrent use.
//
// Where several control planes share a store, the one that plans records the weights in
// the stored object (Record), and all of them serve what is stored (Served). Each serves
// the health that it sees itself, so that a store that fails does not freeze it; the
// recorded health is only what a control plane assumes when it starts.
package fleetstate

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Check returns an error for a list of replicas that cannot serve the models. Replicas
// must be valid, have distinct ids and distinct addresses that are IP:port, and serve
// known models; each model must have a replica that is not a prefill replica.
func Check(models []string, list []policies.Replica) error {
	count, decoding := make(map[string]int, len(models)), make(map[string]bool, len(models))
	for _, m := range models {
		count[m] = 0
	}
	ids := make(map[policies.ReplicaID]bool, len(list))
	addresses := make(map[netip.AddrPort]policies.ReplicaID, len(list))
	for _, r := range list {
		if err := r.Validate(); err != nil {
			return err
		}
		if len(r.ID) > loadreport.MaxName {
			return fmt.Errorf("replica %.40q…: the id is longer than %d bytes", r.ID, loadreport.MaxName)
		}
		if _, ok := count[r.Model]; !ok {
			return fmt.Errorf("replica %q: no model %q is configured", r.ID, r.Model)
		}
		a, err := netip.ParseAddrPort(r.Address)
		if err != nil || a.Port() == 0 {
			return fmt.Errorf("replica %q: address %q: must be an IP address and a port, such as 10.0.0.7:8000", r.ID, r.Address)
		}
		if ids[r.ID] {
			return fmt.Errorf("replica %q is configured twice", r.ID)
		}
		if other, ok := addresses[a]; ok {
			return fmt.Errorf("replicas %q and %q have the same address %s", other, r.ID, a)
		}
		ids[r.ID], addresses[a] = true, r.ID
		count[r.Model]++
		if !r.Prefill {
			decoding[r.Model] = true
		}
	}
	for _, m := range models {
		switch {
		case count[m] == 0:
			return fmt.Errorf("model %q has no replica: keep one, or remove the model too", m)
		case !decoding[m]:
			return fmt.Errorf("model %q has only prefill replicas: one at least must generate the answers", m)
		}
	}
	return nil
}

// Config is the configuration of a Registry.
type Config struct {
	// Grace is how long a report counts, and how long a replica that has not reported
	// since the start of the program counts as ready, unless it is stored as unready.
	Grace time.Duration
	// HalfLife is that of the flow of a replica that no longer reports.
	HalfLife time.Duration
	// Shared says that other control planes share the store; see the package comment.
	Shared bool
}

// Registry is the replicas of a fleet.
type Registry struct {
	cfg        Config
	replicas   []*Replica // in the order in which they were configured first
	byID       map[policies.ReplicaID]*Replica
	configured bool                                   // a first list was applied
	restored   map[policies.ReplicaID]replicaCounters // until configured
	stored     map[policies.ReplicaID]served          // in the last stored object; missing: neutral and healthy
	view       planner.View                           // of the last call of View
}

// New returns an empty registry.
func New(cfg Config) *Registry {
	return &Registry{
		cfg: cfg, byID: make(map[policies.ReplicaID]*Replica),
		view: planner.View{Grace: micros(cfg.Grace), HalfLife: micros(cfg.HalfLife)},
	}
}

// Configured reports whether a list of replicas has been configured.
func (g *Registry) Configured() bool { return g.configured }

// All returns the replicas, including those that are no longer configured but not
// forgotten yet. The slice must not be changed.
func (g *Registry) All() []*Replica { return g.replicas }

// Get returns the replica with an id, or nil.
func (g *Registry) Get(id policies.ReplicaID) *Replica { return g.byID[id] }

// OfModel returns the replica with an id, or nil if there is none or it serves
// another model by now: a plan may still name it.
func (g *Registry) OfModel(model string, id policies.ReplicaID) *Replica {
	if r := g.byID[id]; r != nil && r.Model == model {
		return r
	}
	return nil
}

// Configure applies a new configured list, which must have passed Check. Replicas
// that are missing from it are removed once no plan names them.
func (g *Registry) Configure(now time.Time, list []policies.Replica) {
	listed := make(map[policies.ReplicaID]bool, len(list))
	for _, c := range list {
		listed[c.ID] = true
		r := g.byID[c.ID]
		if r == nil {
			r = &Replica{Stage: -1, Weight: balance.NeutralWeight, Health: resources.Unhealthy}
			if !g.configured {
				// A control plane that starts has no reports yet, but the engines may
				// have been ready all the time.
				r.assumedReady = now.Add(g.cfg.Grace)
			}
			g.replicas = append(g.replicas, r)
			g.byID[c.ID] = r
		}
		if r.Model != "" && r.Model != c.Model {
			r.reset()
		}
		if r.Address != c.Address {
			r.reach = reach{received: r.Report.Service.Received}
		}
		r.Replica, r.configuredKV, r.Removed = c, c.Capacity.KV, false
		r.applyReportedKV()
		if !g.configured {
			r.restore(now, g.restored[c.ID])
		}
	}
	for _, r := range g.replicas {
		r.Removed = r.Removed || !listed[r.ID]
	}
	g.configured, g.restored = true, nil
	g.applyServed()
}

// Refresh recomputes a replica's health and reports whether it changed. change says
// what there is to log; nil: nothing.
func (g *Registry) Refresh(now time.Time, r *Replica) (changed bool, change *HealthChange) {
	return r.refresh(now, g.cfg.Grace)
}

// Forget drops the replicas that are neither configured nor in a plan, and whose flow
// has faded.
func (g *Registry) Forget(now time.Time) {
	g.replicas = slices.DeleteFunc(g.replicas, func(r *Replica) bool {
		drop := r.Removed && r.Stage < 0 && g.faded(now, r)
		if drop {
			delete(g.byID, r.ID)
		}
		return drop
	})
}

// RecordStages records for each replica of a model which stage of its plan it is in; a plan
// without stages is none.
func (g *Registry) RecordStages(model string, plan policies.Plan) {
	for _, r := range g.replicas {
		if r.Model == model {
			r.Stage = -1
		}
	}
	for i, stage := range plan.Stages {
		for _, id := range stage.Replicas {
			if r := g.OfModel(model, id); r != nil {
				r.Stage = i
			}
		}
	}
}

// CheckReport returns an error for a report whose replica is not configured or
// serves another model.
func (g *Registry) CheckReport(report loadreport.Report) error {
	r := g.byID[report.Replica]
	if r == nil || r.Removed {
		return fmt.Errorf("replica %q is not configured: add it to the control plane's replicas", report.Replica)
	}
	if r.Model != report.Model {
		return fmt.Errorf("replica %q is configured for model %q and reports for %q", report.Replica, r.Model, report.Model)
	}
	return nil
}
