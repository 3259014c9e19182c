package fleet

import (
	"net/netip"
	"time"

	"github.com/cascadeinfer/cascade/policies/loadestimate"
	"github.com/cascadeinfer/cascade/policies/weights"
	"github.com/cascadeinfer/cascade/xds/internal/registry"
)

// Proxies returns the load of the replicas as reported by the proxies in front of them.
type Proxies interface {
	// Loads returns what all proxies together reported recently, by the address of the
	// replica. An address without traffic is missing; nil means that no proxy reports
	// at all. It must not block.
	Loads(now time.Time) map[netip.AddrPort]loadestimate.ProxyReport
}

// handleProxyLoads applies the reports of the proxies.
func (s *State) handleProxyLoads(now time.Time, loads map[netip.AddrPort]loadestimate.ProxyReport) {
	if loads == nil {
		return // no report is not the same as no request
	}
	for _, r := range s.registry.All() {
		if a, err := netip.ParseAddrPort(r.Address); err == nil {
			s.estimateLoad(now, r, loads[a])
			r.HandleProxyReport(now, loads[a])
			s.refresh(now, r)
		}
	}
}

// estimateLoad updates the estimate of a replica's load.
func (s *State) estimateLoad(now time.Time, r *registry.Replica, ev loadestimate.Event) {
	var m Model
	if known := s.model(r.Model); known != nil {
		m = known.Model
	}
	r.EstimateLoad(s.micros(now), loadestimate.NewReplica(r.Replica, m.Cost, m.Context, micros(s.rules.Grace)), ev)
}

// updateWeights computes the stages' next weights and reports whether any changed.
func (s *State) updateWeights(now time.Time, m *model) (changed bool) {
	for _, stage := range m.planner.Plan().Stages {
		loads := make([]weights.Replica, 0, len(stage.Replicas))
		for _, id := range stage.Replicas {
			if r := s.registry.OfModel(m.Name, id); r != nil {
				s.estimateLoad(now, r, loadestimate.Tick{})
				loads = append(loads, weights.NewReplica(r.Replica, r.Estimate, r.Ready(), s.registry.ServedWeight(r)))
			}
		}
		for id, w := range weights.Next(loads) {
			if r := s.registry.Get(id); r != nil && r.Weight != w {
				r.Weight, changed = w, true
			}
		}
	}
	return changed
}
