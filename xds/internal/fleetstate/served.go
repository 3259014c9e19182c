package fleetstate

import (
	"cmp"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

// served is what the stored object records of a replica.
type served struct {
	weight uint32
	// health is what the leader saw; Draining: its migrator stops. A control plane that
	// starts assumes it until the replica reports.
	health resources.Health
}

// ServedWeight returns the weight of a replica that is published to proxies: that of the
// leader, where several control planes share a store. The published health is what this
// control plane sees itself: the store may be late or fail.
func (g *Registry) ServedWeight(r *Replica) uint32 {
	if !g.cfg.Shared {
		return r.Weight
	}
	return r.stored.weight
}

// ApplyStored applies what a stored object records of the replicas, and reports whether
// a weight has changed.
func (g *Registry) ApplyStored(o store.Object) (changed bool) {
	if !g.cfg.Shared {
		return false
	}
	g.stored = make(map[policies.ReplicaID]served, len(o.Weights))
	set := func(id policies.ReplicaID, edit func(*served)) {
		s, ok := g.stored[id]
		if !ok {
			s.weight = balance.NeutralWeight
		}
		edit(&s)
		g.stored[id] = s
	}
	for _, w := range o.Weights {
		set(w.Replica, func(s *served) { s.weight = w.Weight })
	}
	for _, id := range o.Unready {
		set(id, func(s *served) { s.health = resources.Unhealthy })
	}
	for _, id := range o.Stopping {
		set(id, func(s *served) { s.health = resources.Draining })
	}
	return g.applyServed()
}

// applyServed records for each replica what the stored object contains.
func (g *Registry) applyServed() (changed bool) {
	if !g.cfg.Shared {
		return false
	}
	for _, r := range g.replicas {
		s, ok := g.stored[r.ID]
		if !ok {
			s.weight = balance.NeutralWeight
		}
		changed = changed || s.weight != r.stored.weight
		r.stored = s
	}
	return changed
}

// Record writes the state of the replicas, as this control plane sees it, into an
// object that it stores as the leader.
func (g *Registry) Record(o *store.Object) {
	o.Weights, o.Unready, o.Stopping = nil, nil, nil
	for _, r := range g.replicas {
		if r.Removed {
			continue
		}
		if r.Weight != balance.NeutralWeight {
			o.Weights = append(o.Weights, store.Weight{Replica: r.ID, Weight: r.Weight})
		}
		switch r.healthToStore() {
		case resources.Unhealthy:
			o.Unready = append(o.Unready, r.ID)
		case resources.Draining:
			o.Stopping = append(o.Stopping, r.ID)
		}
	}
	slices.SortFunc(o.Weights, func(a, b store.Weight) int { return cmp.Compare(a.Replica, b.Replica) })
	slices.Sort(o.Unready)
	slices.Sort(o.Stopping)
}

// healthToStore returns the replica's health as an object records it: drains that the
// configuration or an operator ordered are stored elsewhere.
func (r *Replica) healthToStore() resources.Health {
	switch {
	case r.Health == resources.Unhealthy:
		return resources.Unhealthy
	case r.Report.Draining && !r.DrainOrdered():
		return resources.Draining
	}
	return resources.Healthy
}

// StoredHealthOutdated reports whether the health of a replica differs from the
// stored one.
func (g *Registry) StoredHealthOutdated() bool {
	return slices.ContainsFunc(g.replicas, func(r *Replica) bool { return !r.Removed && r.healthToStore() != r.stored.health })
}

// TakeOver prepares a control plane that becomes the leader: weights continue from
// the stored ones.
func (g *Registry) TakeOver() {
	for _, r := range g.replicas {
		r.Weight = r.stored.weight
	}
}
