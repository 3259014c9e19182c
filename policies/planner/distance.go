package planner

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/links"
)

// near returns the assigner of the policy, with the distances between the model's replicas
// where migrations are priced by them. The map is kept until ResetDistances.
func (p *Planner) near(v *View) adoption.Assigner {
	assigner := adoption.Assigner{PackHosts: p.cfg.Policy.paper}
	if p.cfg.TokenBytes == 0 {
		return assigner
	}
	if p.distances == nil {
		c := links.CostMapConfig{Rates: p.cfg.Links, TokenBytes: p.cfg.TokenBytes, Base: p.cfg.Transfer.Base}
		for i := range v.Replicas {
			c.Replicas = append(c.Replicas, links.Endpoint{ID: v.Replicas[i].ID, Topology: v.Replicas[i].Topology})
		}
		p.distances = links.NewCostMap(c)
	}
	assigner.Map = p.distances
	return assigner
}

// ResetDistances is called when the topology of a replica or the configuration has changed.
func (p *Planner) ResetDistances() { p.distances = nil }

// transfer returns the assumed cost of a migration before the replicas of each stage
// are known: from each replica to its nearest one.
func (p *Planner) transfer(v *View, eligible []policies.Replica) policies.Transfer {
	n := p.near(v)
	if n.Map == nil || len(eligible) < 2 {
		return p.cfg.Transfer
	}
	ids := make([]policies.ReplicaID, len(eligible))
	for i, r := range eligible {
		ids[i] = r.ID
	}
	return n.Map.NearestTransfer(ids)
}
