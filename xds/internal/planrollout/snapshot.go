package planrollout

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Snapshot is a view of plans and the proven set of resources that it renders to. It is immutable.
type Snapshot struct {
	View resources.View
	Set  resources.Set
}

// NewSnapshot renders a view and proves it, as resources.Prove does.
func NewSnapshot(v resources.View, prove func(resources.Set) error) (*Snapshot, error) {
	s, err := resources.Build(v)
	if err != nil {
		return nil, err
	}
	if err := prove(s); err != nil {
		return nil, err
	}
	return &Snapshot{View: v, Set: s}, nil
}

// Epoch returns the epoch of the snapshot's newest plan.
func (t *Snapshot) Epoch() policies.Epoch {
	var epoch policies.Epoch
	for _, plan := range t.View.Plans {
		epoch = max(epoch, plan.Epoch)
	}
	return epoch
}

// sameRoutes reports whether two snapshots have the same routes and listeners,
// whatever their endpoints.
func (t *Snapshot) sameRoutes(o *Snapshot) bool {
	return t.Set.Equal(o.Set, resources.RouteType, resources.ListenerType)
}

// sameExceptHealth reports whether two snapshots differ at most in the health and
// weights of endpoints: the routes, the clusters and the members of every stage
// are the same.
func (t *Snapshot) sameExceptHealth(o *Snapshot) bool {
	for _, typ := range append(t.Set.Types(), o.Set.Types()...) {
		if typ != resources.EndpointType && typ != resources.RoutingType && !t.Set.Equal(o.Set, typ) {
			return false
		}
	}
	if len(t.View.Endpoints) != len(o.View.Endpoints) || len(t.View.Plans) != len(o.View.Plans) {
		return false
	}
	type location struct{ model, address, node string }
	at := make(map[policies.ReplicaID]location, len(t.View.Endpoints))
	for _, e := range t.View.Endpoints {
		at[e.ID] = location{e.Model, canonicalAddress(e.Address), e.Host}
	}
	for _, e := range o.View.Endpoints {
		if at[e.ID] != (location{e.Model, canonicalAddress(e.Address), e.Host}) {
			return false
		}
	}
	for _, p := range t.View.Plans {
		if !hasPlan(o.View, p.Model) || !sameMembers(p, planOf(o.View, p.Model)) {
			return false
		}
	}
	return true
}

// withHealthOf returns the snapshot's view with the health and weights of another
// view. changed is false if nothing differs.
func (t *Snapshot) withHealthOf(other resources.View) (v resources.View, changed bool) {
	latest := make(map[policies.ReplicaID]resources.Endpoint, len(other.Endpoints))
	for _, e := range other.Endpoints {
		latest[e.ID] = e
	}
	v = t.View
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
func (t *Snapshot) hasDeadStage() bool {
	ready := make(map[policies.ReplicaID]bool, len(t.View.Endpoints))
	for _, e := range t.View.Endpoints {
		ready[e.ID] = e.Health == resources.Healthy
	}
	for _, p := range t.View.Plans {
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
