package client

import (
	"cmp"
	"maps"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// ReadReplicas reads the replicas of all models back out of a snapshot, from the
// endpoints of every priority and their metadata, sorted by id: those in no
// stage too. It is the inverse of resources.Build for what a view says of its
// endpoints, but for two things: Draining is true for every one that should be
// given nothing new, unhealthy ones included, and a replica whose capacity
// nobody said has none and so does not pass Validate.
//
// A replica whose metadata cannot be read is left out: it can still be routed
// to, and nobody can bargain with it.
func ReadReplicas(s *Snapshot) []policies.Replica {
	byID := make(map[policies.ReplicaID]policies.Replica)
	for model, a := range s.assignmentByModel() {
		for _, tier := range a.Priorities {
			for _, e := range tier {
				m, err := resources.ReadEndpointMeta(e.Metadata)
				if err != nil {
					continue
				}
				byID[m.ID] = policies.Replica{
					ID: m.ID, Model: model, Address: e.Address, Peer: m.Peer, Host: m.Host,
					Capacity: m.Capacity, Adapters: m.Adapters, Draining: !e.Healthy,
				}
			}
		}
	}
	return slices.SortedFunc(maps.Values(byID), func(a, b policies.Replica) int { return cmp.Compare(a.ID, b.ID) })
}

// assignmentByModel finds the endpoints of each model that the routes name. Each
// stage's assignment holds the model's whole fleet, so the shortest stage's
// that is there will do.
func (s *Snapshot) assignmentByModel() map[string]*Assignment {
	found, stage := make(map[string]*Assignment), make(map[string]int)
	for _, t := range s.usedTables() {
		for _, h := range t.Hosts {
			for _, r := range h.Routes {
				m, err := resources.ReadRouteMeta(r.Metadata)
				if err != nil || found[m.Model] != nil && stage[m.Model] <= m.Stage {
					continue
				}
				c := s.Clusters[r.Cluster]
				if c == nil {
					continue
				}
				if a := s.Assignment(c); a != nil && len(a.Priorities) > 0 {
					found[m.Model], stage[m.Model] = a, m.Stage
				}
			}
		}
	}
	return found
}
