package fleet

import (
	"cmp"
	"time"

	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Where several control planes share a store, one of them leads: it plans and records
// the weights of the replicas in the stored object. Like the others, it publishes them
// only when they are stored. Each publishes the health that it sees itself.

// recordInterval is the least time between two writes of the health of replicas. Once
// it has passed, a change of health is written at once. Everything else is written with
// the renewals of the lease.
const recordInterval = 100 * time.Millisecond

// leads reports whether this control plane plans: always where the store is not shared,
// otherwise while it holds the lease.
func (s *State) leads(now time.Time) bool { return s.lease == nil || s.lease.Leads(now) }

// applyObject applies the parts of a stored object other than plans and drains,
// whichever control plane wrote it. own says that it is the answer to the pending
// proposal.
func (s *State) applyObject(now time.Time, o store.Object, own bool) {
	led := s.leads(now)
	s.object = o
	if s.lease == nil {
		return
	}
	if own && s.proposal.withLease {
		s.lease.Written()
		s.recordedAt = now
	} else {
		s.lease.Observe(now, o.Lease)
		s.retryAt = time.Time{} // the next proposal is based on this object
	}
	s.publishPending = s.registry.ApplyStored(o) || s.publishPending
	for _, m := range s.models {
		ratio := m.BytesPerToken
		for _, r := range o.Ratios {
			if r.Model == m.Name {
				ratio = length.Ratio(r.Milli).Clamp()
			}
		}
		for _, c := range o.Counts {
			if c.Model == m.Name {
				m.requests = max(m.requests, c.Requests)
			}
		}
		if m.ratio != ratio {
			m.ratio, s.publishPending = ratio, true
		}
		if !led {
			m.wantedRatio = ratio
		}
	}
	if !led && s.lease.Leads(now) {
		s.takeOver(now)
	}
}

// takeOver begins to lead a fleet that another control plane led until now. Earlier
// measurements count for no plan.
func (s *State) takeOver(now time.Time) {
	s.registry.TakeOver()
	for _, m := range s.models {
		m.planner.TakeOver(s.micros(now))
	}
	s.needsRepair = true
}

// recordReplicas writes the state of the replicas, as this control plane sees it, into
// an object that it stores as the leader.
func (s *State) recordReplicas(o *store.Object) {
	s.registry.Record(o)
	o.Ratios, o.Counts = nil, nil
	for _, m := range s.models {
		o.Counts = append(o.Counts, store.RequestCount{Model: m.Name, Requests: m.requests})
		if m.wantedRatio != m.BytesPerToken {
			o.Ratios = append(o.Ratios, store.Ratio{Model: m.Name, Milli: int64(m.wantedRatio)})
		}
	}
}

// leaseWriteDue reports whether the object is to be written in order to acquire or
// renew the lease, or to record the health of replicas before the next renewal.
func (s *State) leaseWriteDue(now time.Time) bool {
	switch {
	case s.lease == nil:
		return false
	case s.lease.WriteDue(now):
		return true
	case s.healthChanged && s.lease.Leads(now) && now.Sub(s.recordedAt) >= recordInterval:
		s.healthChanged = false
		return s.registry.StoredHealthOutdated()
	}
	return false
}

// StepDown returns the object to store when this control plane ends, so that another
// one leads at once; ok is false if there is none to store.
func (s *State) StepDown(now time.Time) (o store.Object, ok bool) {
	if s.lease == nil || !s.lease.Leads(now) {
		return store.Object{}, false
	}
	o = s.object
	o.Lease = store.Lease{}
	return o, true
}

// Leadership says which control plane plans for a fleet.
type Leadership struct {
	// Self is the name of this control plane. It may be empty where it is the only one.
	Self string
	// Shared says that the store is shared with others; the fields below are set then.
	Shared bool
	// Holder has the lease in force; "" while no control plane has one. LastHolder is
	// the last one that had, and Since when this control plane last saw its lease
	// renewed.
	Holder, LastHolder string
	Since              time.Time
	Leading            bool // this control plane plans
	// Changes counts how often the lease went from one control plane to another, since
	// this one started.
	Changes uint64
	// NameTaken says that another control plane has the name Self.
	NameTaken bool
}

func (s *State) leadership(now time.Time) Leadership {
	l := Leadership{Self: s.rules.Name, Shared: s.lease != nil, Leading: s.leads(now)}
	if s.lease != nil {
		l.LastHolder, l.Since = s.lease.Holder()
		l.LastHolder = cmp.Or(l.LastHolder, s.lastLeader)
		l.Holder, l.Changes = s.lease.Leader(now), s.leaderChanges
		l.NameTaken = s.lease.NameTaken() && l.Holder == l.Self
	}
	return l
}

// LeaderChange says that another control plane leads, or none ("").
type LeaderChange struct {
	From, To string // From is the last one that led; "": none is known
	Released bool   // the last one has released its lease: To is ""
}

// leaderChange returns the change of the leader since the last call; nil: none.
func (s *State) leaderChange(now time.Time) *LeaderChange {
	if s.lease == nil {
		return nil
	}
	leader := s.lease.Leader(now)
	if leader == s.leader {
		return nil
	}
	if s.leader == s.rules.Name {
		for _, m := range s.models {
			m.planner.Resign()
		}
	}
	c := &LeaderChange{From: s.lastLeader, To: leader, Released: leader == "" && s.object.Lease.Holder == ""}
	if s.leader = leader; leader != "" {
		if s.lastLeader != "" && s.lastLeader != leader {
			s.leaderChanges++
		}
		s.lastLeader = leader
	}
	return c
}
