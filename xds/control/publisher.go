package control

import (
	"sync"
	"sync/atomic"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// submitter submits the fleet's snapshots to the publisher, with the settings
// and the edge certificate.
type submitter struct {
	settings  resources.Settings
	publisher *publish.Publisher

	mu   sync.Mutex
	last *fleet.Snapshot // nil: none yet
	edge *resources.Certificate
}

var _ fleet.Publisher = (*submitter)(nil)

// Publish implements fleet.Publisher.
func (s *submitter) Publish(snap *fleet.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = snap
	s.submitLocked()
}

// setEdgeCertificate publishes the last snapshot again with another
// certificate.
func (s *submitter) setEdgeCertificate(c *resources.Certificate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.edge = c
	if s.last != nil {
		s.submitLocked()
	}
}

func (s *submitter) submitLocked() {
	v := s.last.View(s.settings)
	v.Edge = s.edge
	s.publisher.Submit(v)
}

// servingCache is the cache with policy slots. It adds the slots to the publisher's
// sets from the first set on, so that all groups get them at once, independent of the
// rollout. It calls onServing at the first set.
type servingCache struct {
	*cache.Cache
	served    atomic.Bool
	onServing func()

	mu    sync.Mutex
	sets  map[string]resources.Set // of the publisher, by group
	slots []*resources.Resource
}

var _ publish.Cache = (*servingCache)(nil)

// Set implements publish.Cache.
func (f *servingCache) Set(group string, set resources.Set) {
	f.mu.Lock()
	f.sets[group] = set
	f.Cache.Set(group, set.WithResources(f.slots...))
	f.mu.Unlock()
	if !f.served.Swap(true) {
		f.onServing()
	}
}

// checkRenderable returns an error if a fleet of these models and replicas
// cannot be rendered, whatever the plan.
func checkRenderable(settings resources.Settings, edge *resources.Certificate, models []fleet.Model, replicas []policies.Replica) error {
	if err := fleet.CheckReplicas(models, replicas); err != nil {
		return err
	}
	v := resources.View{Settings: settings, Edge: edge}
	for _, m := range models {
		v.Models = append(v.Models, m.Model)
		var ids []policies.ReplicaID
		for _, r := range replicas {
			if r.Model == m.Name {
				ids, v.Endpoints = append(ids, r.ID), append(v.Endpoints, resources.Endpoint{Replica: r})
			}
		}
		v.Plans = append(v.Plans, policies.OneStagePlan(m.Name, ids))
	}
	set, err := resources.Build(v)
	if err != nil {
		return err
	}
	return resources.Prove(set)
}

// setSlots applies the policy slots to all groups at once.
func (f *servingCache) setSlots(slots []*resources.Resource) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slots = slots
	for group, set := range f.sets {
		f.Cache.Set(group, set.WithResources(slots...))
	}
}
