package publish

import (
	"net/netip"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// snapshot is a view of plans and the proven set of resources that it renders to. It is immutable.
type snapshot struct {
	view resources.View
	set  resources.Set
}

// epoch returns the epoch of the snapshot's newest plan.
func (t *snapshot) epoch() policies.Epoch {
	var epoch policies.Epoch
	for _, plan := range t.view.Plans {
		epoch = max(epoch, plan.Epoch)
	}
	return epoch
}

// sameExceptHealth reports whether two snapshots differ at most in the health and
// weights of endpoints: the routes, the clusters and the members of every stage
// are the same.
func (t *snapshot) sameExceptHealth(o *snapshot) bool {
	for _, typ := range append(t.set.Types(), o.set.Types()...) {
		if typ != resources.EndpointType && typ != resources.RoutingType && !t.set.Equal(o.set, typ) {
			return false
		}
	}
	if len(t.view.Endpoints) != len(o.view.Endpoints) || len(t.view.Plans) != len(o.view.Plans) {
		return false
	}
	type location struct{ model, address, node string }
	at := make(map[policies.ReplicaID]location, len(t.view.Endpoints))
	for _, e := range t.view.Endpoints {
		at[e.ID] = location{e.Model, canonicalAddress(e.Address), e.Host}
	}
	for _, e := range o.view.Endpoints {
		if at[e.ID] != (location{e.Model, canonicalAddress(e.Address), e.Host}) {
			return false
		}
	}
	for _, p := range t.view.Plans {
		if q, ok := o.view.PlanOf(p.Model); !ok || !sameMembers(p, q) {
			return false
		}
	}
	return true
}

// withHealthOf returns the snapshot's view with the health and weights of another
// view. changed is false if nothing differs.
func (t *snapshot) withHealthOf(other resources.View) (v resources.View, changed bool) {
	latest := make(map[policies.ReplicaID]resources.Endpoint, len(other.Endpoints))
	for _, e := range other.Endpoints {
		latest[e.ID] = e
	}
	v = t.view
	v.Endpoints = append([]resources.Endpoint(nil), v.Endpoints...)
	for i, e := range v.Endpoints {
		n, ok := latest[e.ID]
		if !ok || n.Model != e.Model || canonicalAddress(n.Address) != canonicalAddress(e.Address) {
			continue
		}
		if n.Health != e.Health || n.Weight != e.Weight {
			v.Endpoints[i].Health, v.Endpoints[i].Weight, changed = n.Health, n.Weight, true
		}
	}
	return v, changed
}

// hasDeadStage reports whether a stage of the snapshot has no replica that takes
// requests, so that its replacement is urgent.
func (t *snapshot) hasDeadStage() bool {
	ready := make(map[policies.ReplicaID]bool, len(t.view.Endpoints))
	for _, e := range t.view.Endpoints {
		ready[e.ID] = e.Health == resources.Healthy
	}
	for _, p := range t.view.Plans {
		for _, st := range p.Stages {
			alive := false
			for _, id := range st.Replicas {
				alive = alive || ready[id]
			}
			if !alive {
				return true
			}
		}
	}
	return false
}

// union returns the newest view with the additional parts of the live snapshots:
// members of their stages, removed endpoints and removed models. Health and weights
// come from the newest view. more is false if nothing was added.
func union(newest resources.View, live []*snapshot) (u resources.View, more bool) {
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
	// The most recent snapshot comes first, because it has the latest state of removed
	// endpoints and models.
	for _, t := range slices.Backward(live) {
		for _, m := range t.view.Models {
			if !models[m.Name] {
				models[m.Name], more = true, true
				m.Hosts = slices.DeleteFunc(slices.Clone(m.Hosts), func(h string) bool { return hosts[h] })
				for _, h := range m.Hosts {
					hosts[h] = true
				}
				u.Models = append(u.Models, m)
				plan, _ := t.view.PlanOf(m.Name)
				u.Plans = append(u.Plans, plan)
			}
		}
		gone := removedFrom(u, t.view.Endpoints)
		u.Endpoints, more = append(u.Endpoints, gone...), more || len(gone) > 0
		for _, p := range t.view.Plans {
			if now, _ := u.PlanOf(p.Model); !sameMembers(p, now) {
				u.Previous, more = append(u.Previous, p), true
			}
		}
	}
	return u, more
}

// removedFrom returns the endpoints that the view lacks although it has their model. An id or an
// address that is used again belongs to the new endpoint.
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
