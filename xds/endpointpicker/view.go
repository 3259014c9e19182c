package endpointpicker

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cascadeinfer/cascade/policies/endpointpick"
	"github.com/cascadeinfer/cascade/xds/client"
	"github.com/cascadeinfer/cascade/xds/internal/proxy/route"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// view is a snapshot prepared for requests. It is immutable.
type view struct {
	tables []*route.Table // of host names
	models map[string]*model
	list   []*model // sorted by name
	depth  int64    // to which bodies are hashed while the model is not known
	tiers  map[*client.Assignment][][]endpointpick.Endpoint
	pool   *model // of all requests, where there is no control plane; see UpdatePool
}

// model is a model with its plan and the settings of its estimate.
type model struct {
	resources.LengthMeta
	stages endpointpick.Model
}

// newView prepares a snapshot. It uses what it can of the previous view: most snapshots change
// the endpoints of one stage.
func newView(s *client.Snapshot, previous *view) (*view, error) {
	stages, err := client.ReadStages(s)
	if err != nil {
		return nil, err
	}
	v := &view{models: make(map[string]*model), tiers: make(map[*client.Assignment][][]endpointpick.Endpoint)}
	for _, t := range s.UsedTables() {
		v.tables = append(v.tables, route.NewTable(t))
		for _, h := range t.Hosts {
			for _, m := range h.Models {
				if v.models[m.Model] == nil && stages[m.Model] != nil {
					v.models[m.Model] = &model{LengthMeta: m}
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(stages)) {
		m := v.models[name]
		if m == nil {
			return nil, fmt.Errorf("model %s has routes, but no virtual host has the settings of its length estimate", name)
		}
		for k, stage := range stages[name] {
			tiers, err := v.tiersOf(stage.Endpoints, previous)
			if err != nil {
				return nil, fmt.Errorf("model %s, stage %d: %w", name, k, err)
			}
			m.stages = append(m.stages, endpointpick.Stage{High: stage.High, Tiers: tiers})
		}
		v.list = append(v.list, m)
		v.depth = max(v.depth, m.Prefixes.Depth)
	}
	return v, nil
}

// tiersOf returns the endpoints of an assignment.
func (v *view) tiersOf(a *client.Assignment, previous *view) (tiers [][]endpointpick.Endpoint, err error) {
	if known, ok := previous.tiers[a]; ok {
		v.tiers[a] = known
		return known, nil
	}
	for _, priority := range a.Priorities {
		tier := make([]endpointpick.Endpoint, 0, len(priority))
		for _, e := range priority {
			address, err := netip.ParseAddrPort(e.Address)
			if err != nil {
				return nil, fmt.Errorf("endpoint %q: %w", e.Address, err)
			}
			tier = append(tier, endpointpick.NewEndpoint(address, e.Weight, e.Healthy))
		}
		tiers = append(tiers, tier)
	}
	v.tiers[a] = tiers
	return tiers, nil
}

// byHost returns the model that a host name selects, nil if the request must name it.
func (v *view) byHost(authority string) *model {
	for _, t := range v.tables {
		if h := t.Host(authority); h != nil && len(h.Models) == 1 {
			return v.models[h.Models[0].Model]
		}
	}
	return nil
}

// byName returns the model that a body names, directly or by an adapter; nil for an unknown
// name.
func (v *view) byName(name []byte) *model {
	if m := v.models[string(name)]; m != nil {
		return m
	}
	for _, m := range v.list {
		if m.Serves(string(name)) {
			return m
		}
	}
	return nil
}
