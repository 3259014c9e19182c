package fleet

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/policies/proximity"
)

// tell takes what a replica says of where it is; false where that is nothing new.
func (r *replica) tell(s *links.Topology) bool {
	if s == nil || r.site.Equal(*s) {
		return false
	}
	r.site = *s
	return true
}

// place is where the replica is: as it told, but for the node, which is the
// configuration's to say.
func (r *replica) place() links.Topology {
	s := r.site
	s.Host = r.Host
	return s
}

// elsewhere says that the replica believes to be on another node than the
// configuration has it on; "" when it does not.
func (r *replica) elsewhere() string {
	if r.site.Host == "" || r.site.Host == r.Host {
		return ""
	}
	return "it says that it is on node " + r.site.Host + ", the configuration that it is on " + r.Host
}

// near is what is known of the distances between a model's replicas. The map is kept
// until one of them tells something else or the configuration changes.
func (s *State) near(m *model) adoption.Assigner {
	if m.TokenBytes == 0 {
		return adoption.Assigner{}
	}
	if m.near == nil {
		c := proximity.Config{Rates: m.Links, TokenBytes: m.TokenBytes, Base: m.Transfer.Base}
		for _, r := range s.replicas {
			if r.Model == m.Name {
				c.Replicas = append(c.Replicas, proximity.Replica{ID: r.ID, Topology: r.place()})
			}
		}
		m.near = proximity.New(c)
	}
	return adoption.Assigner{Map: m.near}
}

// moved says that somebody is elsewhere than before.
func (s *State) moved() {
	for _, m := range s.models {
		m.near = nil
	}
}

// transfer is what a hand-over is taken to cost before it is known who is in which
// stage: from each replica to its nearest one.
func (s *State) transfer(m *model, eligible []policies.Replica) policies.Transfer {
	n := s.near(m)
	if n.Map == nil || len(eligible) < 2 {
		return m.Transfer
	}
	ids := make([]policies.ReplicaID, len(eligible))
	for i, r := range eligible {
		ids[i] = r.ID
	}
	return n.Map.NearestTransfer(ids)
}
