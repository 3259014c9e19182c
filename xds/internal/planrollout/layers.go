package planrollout

import (
	"net/netip"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// layers describes the set of one group in terms of snapshots.
type layers struct {
	routes *Snapshot   // provides routes and listeners
	newest *Snapshot   // provides the endpoints
	live   []*Snapshot // their members are added to those of newest, oldest first
	// removed are endpoints that are in no plan any more but still have requests.
	removed []resources.Endpoint
}

// render builds the set. It does not prove it.
func (l layers) render(build func(resources.View) (resources.Set, error)) (resources.Set, error) {
	endpoints := l.newest.Set
	u, more := union(l.newest.View, l.live)
	for _, e := range removedFrom(u, l.removed) {
		e.Health = resources.Draining
		u.Endpoints, more = append(u.Endpoints, e), true
	}
	if more {
		var err error
		if endpoints, err = build(u); err != nil {
			return resources.Set{}, err
		}
	}
	return endpoints.WithTypes(l.routes.Set, resources.RouteType, resources.ListenerType), nil
}

// union returns the newest view with the additional parts of the live snapshots:
// members of their stages, removed endpoints and removed models. Health and weights
// come from the newest view. more is false if nothing was added.
func union(newest resources.View, live []*Snapshot) (u resources.View, more bool) {
	u = newest
	u.Models = slices.Clone(u.Models)
	u.Plans = slices.Clone(u.Plans)
	u.Endpoints = slices.Clone(u.Endpoints)
	models := make(map[string]bool)
	hosts := make(map[string]bool)
	for _, m := range u.Models {
		models[m.Name] = true
		for _, h := range m.Hosts {
			hosts[h] = true
		}
	}
	ids := make(map[policies.ReplicaID]bool)
	addresses := make(map[string]bool)
	for _, e := range u.Endpoints {
		ids[e.ID], addresses[canonicalAddress(e.Address)] = true, true
	}
	// The most recent snapshot comes first, because it has the latest state of removed
	// endpoints and models.
	for _, t := range slices.Backward(live) {
		for _, m := range t.View.Models {
			if !models[m.Name] {
				models[m.Name], more = true, true
				m.Hosts = slices.DeleteFunc(slices.Clone(m.Hosts), func(h string) bool { return hosts[h] })
				for _, h := range m.Hosts {
					hosts[h] = true
				}
				u.Models = append(u.Models, m)
				u.Plans = append(u.Plans, planOf(t.View, m.Name))
			}
		}
		for _, e := range t.View.Endpoints {
			// An id or an address that is used again belongs to the new endpoint.
			if !ids[e.ID] && !addresses[canonicalAddress(e.Address)] {
				ids[e.ID], addresses[canonicalAddress(e.Address)], more = true, true, true
				u.Endpoints = append(u.Endpoints, e)
			}
		}
		for _, p := range t.View.Plans {
			if !sameMembers(p, planOf(u, p.Model)) {
				u.Previous, more = append(u.Previous, p), true
			}
		}
	}
	return u, more
}

// removedFrom returns the endpoints that the view lacks although it has their
// model.
func removedFrom(v resources.View, endpoints []resources.Endpoint) []resources.Endpoint {
	models := make(map[string]bool)
	for _, m := range v.Models {
		models[m.Name] = true
	}
	ids := make(map[policies.ReplicaID]bool)
	addresses := make(map[string]bool)
	for _, e := range v.Endpoints {
		ids[e.ID], addresses[canonicalAddress(e.Address)] = true, true
	}
	var out []resources.Endpoint
	for _, e := range endpoints {
		if a := canonicalAddress(e.Address); models[e.Model] && !ids[e.ID] && !addresses[a] {
			ids[e.ID], addresses[a] = true, true
			out = append(out, e)
		}
	}
	return out
}

// canonicalAddress returns one spelling for all spellings of an address.
func canonicalAddress(address string) string {
	if a, err := netip.ParseAddrPort(address); err == nil {
		return a.String()
	}
	return address
}

func hasPlan(v resources.View, model string) bool {
	return slices.ContainsFunc(v.Plans, func(p policies.Plan) bool { return p.Model == model })
}

// planOf returns the plan of a model in the view, which must have one.
func planOf(v resources.View, model string) policies.Plan {
	i := slices.IndexFunc(v.Plans, func(p policies.Plan) bool { return p.Model == model })
	return v.Plans[i]
}

// sameMembers reports whether two plans give every stage the same replicas.
func sameMembers(a, b policies.Plan) bool {
	return slices.EqualFunc(a.Stages, b.Stages, func(x, y policies.Stage) bool {
		in := make(map[policies.ReplicaID]bool, len(x.Replicas))
		for _, r := range x.Replicas {
			in[r] = true
		}
		for _, r := range y.Replicas {
			if !in[r] {
				return false
			}
		}
		return len(x.Replicas) == len(y.Replicas)
	})
}
