package fleet

import (
	"net/netip"
	"time"

	"github.com/cascadeinfer/cascade/xds/internal/loadestimate"
	"github.com/cascadeinfer/cascade/xds/internal/registry"
	"github.com/cascadeinfer/cascade/xds/internal/weights"
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
	limits := loadestimate.Replica{KV: r.Capacity.KV, Batch: r.Capacity.Batch, Late: s.rules.Grace}
	if m := s.model(r.Model); m != nil {
		limits.Context = m.Context
		if m.Cost.D2 > 0 && r.Capacity.TransferRate > 0 {
			// Tokens arrive as its engine computes them and as migrations bring them.
			limits.Rate = 1/m.Cost.D2 + float64(r.Capacity.TransferRate*float64(m.Context))
		}
	}
	r.EstimateLoad(now, limits, ev)
}

// updateWeights computes the stages' next weights and reports whether any changed.
func (s *State) updateWeights(now time.Time, m *model) (changed bool) {
	for _, stage := range m.planner.Plan().Stages {
		loads := make([]weights.Replica, 0, len(stage.Replicas))
		for _, id := range stage.Replicas {
			if r := s.registry.OfModel(m.Name, id); r != nil {
				s.estimateLoad(now, r, loadestimate.Tick{})
				e := r.Estimate
				loads = append(loads, weights.Replica{
					ID: id, Work: e.Work, KV: r.Capacity.KV, Weight: s.registry.ServedWeight(r),
					Known:    r.Ready() && e.Source != loadestimate.Unknown,
					Requests: e.Requests, Counted: e.Counted, Drift: e.Drift, Distrusted: e.Distrusted != "",
				})
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
