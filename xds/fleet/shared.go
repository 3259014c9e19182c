package fleet

import (
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/internal/lease"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Where several control planes share a store, one of them plans, and all of
// them show what is stored: the one that plans writes down what it sees of the
// replicas, and shows it only when it is stored, like the others.

// tellEvery bounds how often the health of replicas is written down; that is at
// once, where the last time is longer ago. Everything else goes with the
// renewals of the lease.
const tellEvery = 100 * time.Millisecond

// told is what the stored object says of a replica.
type told struct {
	weight            uint32
	unready, stopping bool
}

// plans says that this control plane plans: alone always, else with the lease.
func (s *State) plans(now time.Time) bool { return s.lease == nil || s.lease.Leads(now) }

// served is what proxies are shown of a replica.
func (s *State) served(r *replica) (weight uint32, health resources.Health) {
	if s.lease == nil {
		return r.weight, r.health
	}
	weight = r.told.weight
	switch {
	case r.gone || r.ordered() || r.told.stopping:
		health = resources.Draining
	case r.told.unready || r.stage < 0:
		// One that is ready and in no stage is not known to the control plane that
		// plans: it would have been given one.
		health = resources.Unhealthy
	default:
		health = resources.Healthy
	}
	return weight, health
}

// weightOf is the weight that proxies are shown.
func (s *State) weightOf(r *replica) uint32 {
	weight, _ := s.served(r)
	return weight
}

// serves says that proxies are shown a replica that takes requests.
func (s *State) serves(r *replica) bool {
	_, health := s.served(r)
	return health == resources.Healthy
}

// saw takes in what an object says beyond plans and drains, whoever wrote it.
// own says that it is the answer to the proposal that is pending.
func (s *State) saw(now time.Time, o store.Object, own bool) {
	led := s.plans(now)
	// Who publishes must not send what was refused.
	s.dirty = s.dirty || len(missing(o.Refused, s.object.Refused)) > 0
	s.object = o
	if s.lease == nil {
		return
	}
	if own && s.pending.lease {
		s.lease.Wrote()
		s.recorded = now
	} else {
		s.lease.Saw(now, lease.Lease(o.Lease))
		s.retry = time.Time{} // what is to be proposed is proposed on top of this one
	}
	s.retell()
	for _, m := range s.models {
		ratio := m.BytesPerToken
		for _, r := range o.Ratios {
			if r.Model == m.Name {
				ratio = length.Ratio(r.Milli).Clamp()
			}
		}
		if m.ratio != ratio {
			m.ratio, s.dirty = ratio, true
		}
		if !led {
			m.wish = ratio
		}
	}
	if !led && s.lease.Leads(now) {
		s.inherit(now)
	}
}

// retell notes in each replica what the stored object says of it.
func (s *State) retell() {
	if s.lease == nil {
		return
	}
	next := make(map[policies.ReplicaID]told, len(s.object.Weights))
	for _, w := range s.object.Weights {
		t := next[w.Replica]
		t.weight = w.Weight
		next[w.Replica] = t
	}
	for _, id := range s.object.Unready {
		t := next[id]
		t.unready = true
		next[id] = t
	}
	for _, id := range s.object.Stopping {
		t := next[id]
		t.stopping = true
		next[id] = t
	}
	for _, r := range s.replicas {
		t := next[r.ID]
		if t.weight == 0 {
			t.weight = Neutral
		}
		if t != r.told {
			r.told, s.dirty = t, true
		}
	}
}

// inherit begins to plan for a fleet that another control plane planned for
// until now. Replicas that do not report here are believed to be as they were
// for a while; what was measured by then counts for no plan.
func (s *State) inherit(now time.Time) {
	for _, r := range s.replicas {
		if !r.told.unready && !r.told.stopping && !r.fresh(now, s.rules.Grace) {
			r.heard, r.assumed = false, now.Add(s.rules.Grace)
		}
		r.weight = r.told.weight
		s.refresh(now, r)
	}
	for _, m := range s.models {
		m.next, m.lacks = now.Add(s.rules.Period), time.Time{}
		m.decider.reset(len(m.plan.Stages))
	}
	s.uneasy = true
}

// record puts what this control plane sees into an object that it writes as the
// holder of the lease.
func (s *State) record(o *store.Object) {
	o.Weights, o.Unready, o.Stopping, o.Ratios = nil, nil, nil, nil
	for _, r := range s.replicas {
		if r.gone {
			continue
		}
		if r.weight != Neutral {
			o.Weights = append(o.Weights, store.Weight{Replica: r.ID, Weight: r.weight})
		}
		unready, stopping := r.state()
		if unready {
			o.Unready = append(o.Unready, r.ID)
		}
		if stopping {
			o.Stopping = append(o.Stopping, r.ID)
		}
	}
	slices.SortFunc(o.Weights, func(a, b store.Weight) int { return strings.Compare(string(a.Replica), string(b.Replica)) })
	slices.Sort(o.Unready)
	slices.Sort(o.Stopping)
	for _, m := range s.models {
		if m.wish != m.BytesPerToken {
			o.Ratios = append(o.Ratios, store.Ratio{Model: m.Name, Milli: int64(m.wish)})
		}
	}
}

// state is a replica's health in the words of an object. What is ordered is
// known from elsewhere.
func (r *replica) state() (unready, stopping bool) {
	switch {
	case r.health == resources.Unhealthy:
		return true, false
	case r.report.Draining && !r.ordered():
		return false, true
	}
	return false, false
}

// changed says that the health of a replica is not what is stored.
func (s *State) changed() bool {
	return slices.ContainsFunc(s.replicas, func(r *replica) bool {
		unready, stopping := r.state()
		return !r.gone && (unready != r.told.unready || stopping != r.told.stopping)
	})
}

// renews says that the object is to be written for the lease's sake: to have it,
// or to tell who is ready, which cannot wait for the next renewal.
func (s *State) renews(now time.Time) bool {
	switch {
	case s.lease == nil:
		return false
	case s.lease.Due(now):
		return true
	case s.unwell && s.lease.Leads(now) && now.Sub(s.recorded) >= tellEvery:
		s.unwell = false
		return s.changed()
	}
	return false
}

// Resign returns the object to store when this control plane ends, so that
// another one plans at once; ok is false where there is none to store.
func (s *State) Resign(now time.Time) (o store.Object, ok bool) {
	if s.lease == nil || !s.lease.Leads(now) {
		return store.Object{}, false
	}
	o = s.object
	o.Lease = store.Lease{}
	return o, true
}

// Planner is who plans for a fleet.
type Planner struct {
	// Self is the name of this control plane. It may be empty where it is alone.
	Self string
	// Shared says that the store is shared with others. What follows holds then.
	Shared bool
	// Holder has the lease, and Since is when it was last seen to be renewed;
	// "" while nobody has it.
	Holder string
	Since  time.Time
	Leads  bool // this one plans
}

// planner says who plans.
func (s *State) planner(now time.Time) Planner {
	p := Planner{Self: s.rules.Name, Shared: s.lease != nil, Leads: s.plans(now)}
	if s.lease != nil {
		p.Holder, p.Since = s.lease.Holder()
	}
	return p
}
