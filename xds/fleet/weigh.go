package fleet

import (
	"net/netip"
	"time"

	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
)

// Proxies returns the load of the replicas as reported by the proxies in front of them.
type Proxies interface {
	// Loads returns what all proxies together reported recently, by the address of the
	// replica. An address without traffic is missing; nil means that no proxy reports
	// at all. It must not block.
	Loads(now time.Time) map[netip.AddrPort]balance.ProxyReport
}

// handleProxyLoads applies the reports of the proxies.
func (s *State) handleProxyLoads(now time.Time, loads map[netip.AddrPort]balance.ProxyReport) {
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
func (s *State) estimateLoad(now time.Time, r *fleetstate.Replica, ev balance.Event) {
	var m Model
	if known := s.model(r.Model); known != nil {
		m = known.Model
	}
	r.EstimateLoad(s.micros(now), balance.NewEngine(r.Replica, m.Cost, m.Context, micros(s.rules.Grace)), ev)
}

// updateWeights computes the stages' next weights and reports whether any changed.
func (s *State) updateWeights(now time.Time, m *model) (changed bool) {
	for _, stage := range m.planner.Plan().Stages {
		loads := make([]balance.Member, 0, len(stage.Replicas))
		for _, id := range stage.Replicas {
			if r := s.registry.OfModel(m.Name, id); r != nil {
				s.estimateLoad(now, r, balance.Tick{})
				loads = append(loads, balance.NewMember(r.Replica, r.Estimate, r.Ready(), s.registry.ServedWeight(r)))
			}
		}
		for id, w := range balance.NextWeights(loads) {
			if r := s.registry.Get(id); r != nil && r.Weight != w {
				r.Weight, changed = w, true
			}
		}
	}
	return changed
}
