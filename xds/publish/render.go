package publish

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// NewTable renders and proves a view.
func NewTable(v resources.View) (*Table, error) {
	s, err := resources.Build(v)
	if err != nil {
		return nil, err
	}
	if err := resources.Prove(s); err != nil {
		return nil, err
	}
	return &Table{View: v, Set: s}, nil
}

// Render makes the set of a phase and proves it. It is pure.
func Render(s Show) (resources.Set, error) {
	endpoints := s.Newest.Set
	if u, more := union(s.Newest.View, s.Live); more {
		var err error
		if endpoints, err = resources.Build(u); err != nil {
			return resources.Set{}, fmt.Errorf("%s: %w", s.Phase, err)
		}
	}
	set := endpoints.With(s.Routes.Set, resources.RouteType, resources.ListenerType)
	if err := resources.Prove(set); err != nil {
		return resources.Set{}, fmt.Errorf("%s: %w", s.Phase, err)
	}
	return set, nil
}

// union is the newest view plus what the live ones have beyond it: members of
// their stages, endpoints that were removed, models that were removed. Health
// and weights are the newest. more is false when there is nothing beyond.
func union(newest resources.View, live []*Table) (u resources.View, more bool) {
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
		ids[e.ID], addresses[canonical(e.Address)] = true, true
	}
	// The most recent table first: it knows what was removed best.
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
			// An id or an address that is in use again is the new one's.
			if !ids[e.ID] && !addresses[canonical(e.Address)] {
				ids[e.ID], addresses[canonical(e.Address)], more = true, true, true
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

// canonical spells an address in one way.
func canonical(address string) string {
	if a, err := netip.ParseAddrPort(address); err == nil {
		return a.String()
	}
	return address
}

// planOf returns the plan of a model that the view has.
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
