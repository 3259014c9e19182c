package client

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// ReadPlans reads the plans from a snapshot: stages, cuts and epoch from the routes of
// every model, members from the first priority of each stage's endpoints. It is the
// inverse of resources.Build for the plans of its view, sorted by model. Members of a
// stage are in order of their ids.
//
// During a rollout a stage's endpoints are the union of two plans. A replica in two
// stages then belongs to the lower one. A stage without members is an error, and so is
// a route table that is not a plan: the caller keeps its last plans.
func ReadPlans(s *Snapshot) ([]policies.Plan, error) {
	byModel := make(map[string]map[int]resources.RouteMeta)
	epochs := make(map[string]policies.Epoch)
	clusterOf := make(map[string]map[int]string)
	for _, t := range s.UsedTables() {
		for _, h := range t.Hosts {
			for _, r := range h.Routes {
				if r.Metadata.GetFilterMetadata()[resources.MetadataKey] == nil {
					continue
				}
				m, err := resources.ReadRouteMeta(r.Metadata)
				if err != nil {
					return nil, fmt.Errorf("plans: route table %s, route %s: %w", t.Name, r.Name, err)
				}
				if err := checkRange(r, m); err != nil {
					return nil, fmt.Errorf("plans: route table %s, route %s: %w", t.Name, r.Name, err)
				}
				if m.Rule == resources.ByPrefix {
					continue // the endpoints of its cluster have no more than their ids
				}
				if byModel[m.Model] == nil {
					byModel[m.Model], clusterOf[m.Model], epochs[m.Model] = map[int]resources.RouteMeta{}, map[int]string{}, m.Epoch
				}
				if epochs[m.Model] != m.Epoch {
					return nil, fmt.Errorf("plans: model %s: routes of epochs %d and %d in one table", m.Model, epochs[m.Model], m.Epoch)
				}
				byModel[m.Model][m.Stage], clusterOf[m.Model][m.Stage] = m, r.Cluster
			}
		}
	}
	var plans []policies.Plan
	for _, model := range slices.Sorted(maps.Keys(byModel)) {
		p := policies.Plan{Model: model, Epoch: epochs[model]}
		taken := make(map[policies.ReplicaID]bool)
		for k := range len(byModel[model]) {
			m, ok := byModel[model][k]
			if !ok {
				return nil, fmt.Errorf("plans: model %s: no route for stage %d of %d", model, k, len(byModel[model]))
			}
			members, err := s.members(clusterOf[model][k], taken)
			if err != nil {
				return nil, fmt.Errorf("plans: model %s, stage %d: %w", model, k, err)
			}
			p.Stages = append(p.Stages, policies.Stage{Low: m.Low, High: m.High, Replicas: members})
		}
		if err := p.Validate(); err != nil {
			return nil, fmt.Errorf("plans: %w", err)
		}
		plans = append(plans, p)
	}
	return plans, nil
}

// UsedTables lists the route tables that listeners use, sorted by name.
func (s *Snapshot) UsedTables() []*RouteTable {
	seen := make(map[*RouteTable]bool)
	for _, t := range s.Routes {
		seen[t] = true
	}
	for _, l := range s.Listeners {
		if l.Inline != nil {
			seen[l.Inline] = true
		}
	}
	return slices.SortedFunc(maps.Keys(seen), func(a, b *RouteTable) int { return cmp.Compare(a.Name, b.Name) })
}

// checkRange checks that a route's metadata agrees with its match.
func checkRange(r *Route, m resources.RouteMeta) error {
	if m.Rule != resources.ByTokens {
		return nil
	}
	for _, h := range r.Headers {
		if h.Kind == MatchRange && (policies.Tokens(h.Start) != m.Low || policies.Tokens(h.End) != m.High) {
			return fmt.Errorf("matches [%d, %d), but its metadata says [%d, %d)", h.Start, h.End, m.Low, m.High)
		}
	}
	return nil
}

// members returns the replicas of a cluster's first priority that are in no stage yet,
// and adds them to taken.
func (s *Snapshot) members(cluster string, taken map[policies.ReplicaID]bool) ([]policies.ReplicaID, error) {
	c := s.Clusters[cluster]
	if c == nil {
		return nil, fmt.Errorf("cluster %q is unknown or not ready", cluster)
	}
	a := s.Assignment(c)
	if a == nil || len(a.Priorities) == 0 {
		return nil, errors.New("its cluster has no endpoints")
	}
	var ids []policies.ReplicaID
	for _, e := range a.Priorities[0] {
		m, err := resources.ReadEndpointMeta(e.Metadata)
		if err != nil {
			return nil, fmt.Errorf("endpoint %s: %w", e.Address, err)
		}
		if !taken[m.ID] {
			taken[m.ID] = true
			ids = append(ids, m.ID)
		}
	}
	slices.Sort(ids)
	return ids, nil
}
