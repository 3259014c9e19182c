package fleet

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/xds/internal/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Check says why a list of replicas cannot be served by the models, or nil:
// replicas must be valid, with distinct ids and addresses that are IP:port,
// ask for known models, and leave no model without one.
func Check(models []Model, list []policies.Replica) error {
	left := make(map[string]int, len(models))
	for _, m := range models {
		left[m.Name] = 0
	}
	ids := make(map[policies.ReplicaID]bool, len(list))
	addresses := make(map[netip.AddrPort]policies.ReplicaID, len(list))
	for _, r := range list {
		if err := r.Validate(); err != nil {
			return err
		}
		if len(r.ID) > maxName {
			return fmt.Errorf("replica %.40q…: the id is longer than %d bytes", r.ID, maxName)
		}
		if _, ok := left[r.Model]; !ok {
			return fmt.Errorf("replica %q: no model %q", r.ID, r.Model)
		}
		a, err := netip.ParseAddrPort(r.Address)
		if err != nil || a.Port() == 0 {
			return fmt.Errorf("replica %q: address %q: give an IP address and a port, such as 10.0.0.7:8000", r.ID, r.Address)
		}
		if ids[r.ID] {
			return fmt.Errorf("replica %q is there twice", r.ID)
		}
		if other, ok := addresses[a]; ok {
			return fmt.Errorf("replicas %q and %q have the same address %s", other, r.ID, a)
		}
		ids[r.ID], addresses[a] = true, r.ID
		left[r.Model]++
	}
	for _, m := range models {
		if left[m.Name] == 0 {
			return fmt.Errorf("model %q has no replica: keep one, or take the model out too", m.Name)
		}
	}
	return nil
}

// replica is one registered replica and the last that was heard of it.
type replica struct {
	policies.Replica
	// gone is true once the replica is out of the configuration. It stays
	// listed as draining until no plan names it, and its flow is forgotten
	// slowly.
	gone    bool
	asked   bool // an operator drains it; policies.Replica.Draining is the configuration's
	stage   int  // in the plan in force; -1: none
	report  Report
	at      time.Time         // of the last report; zero: never heard of
	open    bool              // a report stream is there
	heard   bool              // a report came since the program started
	assumed time.Time         // until then a replica that was not heard counts as ready
	past    uint64            // requests seen by earlier lives of the front
	weight  uint32            // to be served; see State.served
	health  resources.Health  // as last computed by refresh
	told    told              // what the stored object says
	note    string            // what is wrong with its reports
	judged  loadreport.Model  // what is believed of its load
	figure  loadreport.Figure // as last judged
	site    links.Topology    // as last told; the zero value: never
}

// refresh computes the replica's health and says whether it changed.
func (r *replica) refresh(now time.Time, grace time.Duration) bool {
	h := resources.Unhealthy
	switch {
	case r.gone || r.ordered() || r.report.Draining:
		h = resources.Draining
	case !r.heard && now.Before(r.assumed):
		h = resources.Healthy
	case r.heard && r.fresh(now, grace) && r.report.EngineReady:
		h = resources.Healthy
	}
	changed := h != r.health
	r.health = h
	return changed
}

// fresh says that the last report is not late.
func (r *replica) fresh(now time.Time, grace time.Duration) bool {
	return !r.at.IsZero() && now.Sub(r.at) <= grace
}

// tells says that the replica serves and its load is known: what was kept of it
// across a restart is no load.
func (r *replica) tells(now time.Time, grace time.Duration) bool {
	return r.ready() && r.heard && r.fresh(now, grace)
}

// ready says that the replica may take new requests.
func (r *replica) ready() bool { return r.health == resources.Healthy }

// draining says that the replica shall leave its stage.
func (r *replica) draining() bool { return r.health == resources.Draining }

// ordered says that somebody wants the replica emptied: the configuration or an
// operator, and not its own migrator, which stops.
func (r *replica) ordered() bool { return r.Draining || r.asked }

// take puts a report in place of the one before.
func (r *replica) take(now time.Time, report Report) {
	if report.Flow.Seen < r.report.Flow.Seen {
		r.past = min(r.past+r.report.Flow.Seen, maxSeen) // the front has started anew
	}
	r.report, r.at, r.open, r.heard = report, now, true, true
}

// renew forgets what was heard while the replica served another model: it
// counts as unready until its front reports for the new one.
func (r *replica) renew() {
	*r = replica{Replica: r.Replica, asked: r.asked, stage: -1, open: r.open, weight: Neutral, health: resources.Unhealthy, told: r.told, site: r.site}
}

// seen counts the requests of all lives of the front.
func (r *replica) seen() uint64 { return r.past + r.report.Flow.Seen }

// work is the tokens that the replica holds or has promised to hold.
func (r *replica) work() policies.Tokens { return r.report.Load.Held + r.report.Load.Promised }
