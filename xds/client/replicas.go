package client

import (
	"cmp"
	"maps"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// ReadReplicas reads the replicas of all models from a snapshot: from the endpoints of
// all stages, of every priority, and their metadata, sorted by id, including replicas in no stage. It
// is the inverse of resources.Build for a view's endpoints, with two exceptions:
// Draining is true for every replica that must get nothing new, including unhealthy
// ones, and a replica of unknown capacity has none and so does not pass Validate.
//
// A replica whose metadata cannot be decoded is left out: proxies can route to it, but
// it cannot take part in the market.
func ReadReplicas(s *Snapshot) []policies.Replica {
	byID := make(map[policies.ReplicaID]policies.Replica)
	for model, all := range s.assignments() {
		for _, a := range all {
			for _, e := range slices.Concat(a.Priorities...) {
				m, err := resources.ReadEndpointMeta(e.Metadata)
				if err != nil {
					continue
				}
				byID[m.ID] = policies.Replica{
					ID: m.ID, Model: model, Address: e.Address, Peer: m.Peer, Host: m.Host,
					Capacity: m.Capacity, Adapters: m.Adapters, Draining: !e.Healthy, Prefill: m.Prefill,
				}
			}
		}
	}
	return slices.SortedFunc(maps.Values(byID), func(a, b policies.Replica) int { return cmp.Compare(a.ID, b.ID) })
}

// assignments returns the endpoints of each model's stages that the routes name. Those of
// one stage may lack replicas of others; all of them together have the whole fleet.
func (s *Snapshot) assignments() map[string][]*Assignment {
	found, seen := make(map[string][]*Assignment), make(map[*Assignment]bool)
	for _, t := range s.UsedTables() {
		for _, h := range t.Hosts {
			for _, r := range h.Routes {
				m, err := resources.ReadRouteMeta(r.Metadata)
				if err != nil || m.Rule == resources.ByPrefix {
					continue
				}
				c := s.Clusters[r.Cluster]
				if c == nil {
					continue
				}
				if a := s.Assignment(c); a != nil && !seen[a] {
					seen[a] = true
					found[m.Model] = append(found[m.Model], a)
				}
			}
		}
	}
	return found
}
