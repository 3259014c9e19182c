package fleet

import (
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/lease"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

// State is the fleet as a state machine: Step takes what happened and says
// what to do about it. It reads no clock, does no I/O and starts nothing; the
// same events at the same times give the same effects. It is not safe for
// concurrent use.
//
// Invariants, after every Step:
//  1. what is published was stored: a plan comes into force by Stored alone,
//  2. a plan in force is valid, and changes only with a growing epoch,
//  3. while a model has a ready replica, every stage has one, or a proposal
//     that gives it one waits for its answer or for its time to be retried,
//  4. weights change at most once a second, by one step each,
//  5. boundaries move at most once a second between two plans,
//  6. with Rules.Shared, plans come from the holder of the lease alone, and all
//     that is published is what is stored and what is configured.
type State struct {
	rules    Rules // complete
	policy   policy
	models   []*model
	replicas []*replica // in the order in which they came
	byID     map[policies.ReplicaID]*replica
	epoch    policies.Epoch
	lease    *lease.Machine // nil unless the store is shared
	object   store.Object   // as stored, as far as it is told
	recorded time.Time      // when the holder last wrote what it sees
	history  []Change
	pending  *Proposal
	zero     time.Time // of the first step: where the machines count from
	retry    time.Time // no proposal before, after a refused one
	weighed  time.Time
	refined  time.Time                          // when boundaries were last proposed
	refusals []store.Refusal                    // to be stored
	slots    *[]policyslots.Slot                // ordered and to be stored; nil: nothing is
	unsaved  bool                               // there are orders or refusals to be stored
	ordered  bool                               // and an operator waits for it
	untidy   bool                               // something stored is about replicas that left
	unwell   bool                               // some replica's health has changed
	kept     map[policies.ReplicaID]keptReplica // by Restore, until begun
	begun    bool                               // a first list of replicas was taken
	dirty    bool                               // something that is published has changed
	uneasy   bool                               // a plan in force may need repair
	doubt    bool                               // set by a repair that waits for time to pass
}

// retryAfter is how long a State waits after a refused proposal.
const retryAfter = time.Second

// NewState returns a State without replicas or plans.
func NewState(rules Rules) (*State, error) {
	if err := rules.validate(); err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	s := &State{rules: rules.complete(), byID: make(map[policies.ReplicaID]*replica)}
	s.policy, _ = policyOf(s.rules.Policy)
	if s.rules.Shared {
		var err error
		if s.lease, err = lease.New(lease.Config{Self: s.rules.Name}); err != nil {
			return nil, fmt.Errorf("fleet: %w", err)
		}
	}
	for _, m := range s.rules.Models {
		d, err := newDecider(s.rules, m.Name, s.policy)
		if err != nil {
			return nil, fmt.Errorf("fleet: %w", err)
		}
		s.models = append(s.models, &model{Model: m, ratio: m.BytesPerToken, wish: m.BytesPerToken, decider: d})
	}
	return s, nil
}

// Step applies an event that happened at now. now must not go back.
func (s *State) Step(now time.Time, ev Event) Effects {
	if s.zero.IsZero() {
		s.zero = now
	}
	switch ev := ev.(type) {
	case Tick:
		s.tick(now)
	case Replicas:
		s.setReplicas(now, ev.List)
	case Reported:
		s.reported(now, ev.Report)
	case Proxied:
		s.proxied(now, ev.Seen)
	case Closed:
		if r := s.byID[ev.Replica]; r != nil {
			r.open = false
		}
	case Drain:
		s.mark(now, ev, ev.Replica, true)
	case Undrain:
		s.mark(now, ev, ev.Replica, false)
	case Pin, Unpin, Rollback:
		s.take(now, ev)
	case Policies:
		s.reslot(ev)
	case Refuse:
		s.refuse(ev.List)
	case Stored:
		s.stored(now, ev.Object)
	case Refused:
		s.refused(now)
	}
	return s.effects(now, ev)
}

// refused gives up a proposal that was not stored, and the orders in it.
func (s *State) refused(now time.Time) {
	if s.pending == nil {
		return
	}
	if s.pending.lease {
		s.lease.Refused(now)
	}
	s.resume(false)
	s.pending, s.retry, s.uneasy = nil, now.Add(retryAfter), true
	s.remark(now)
}

// effects proposes what is due, and publishes when nothing waits to be stored.
func (s *State) effects(now time.Time, ev Event) Effects {
	var e Effects
	if s.pending == nil && s.begun {
		e.Propose = s.due(now, ev)
	}
	if s.pending == nil && s.dirty && s.planned() {
		s.dirty = false
		e.Publish = s.Snapshot(now)
	}
	return e
}

// planned says that every model has a plan.
func (s *State) planned() bool {
	for _, m := range s.models {
		if len(m.plan.Stages) == 0 {
			return false
		}
	}
	return s.begun
}

// stored puts plans in force. Plans of models that the fleet does not serve
// are left out: the store may be older than the program. What is stored and
// does not come into force is stored again under a new epoch, so that the store
// and the fleet agree: see restate.
func (s *State) stored(now time.Time, o store.Object) {
	own := s.pending != nil
	s.saw(now, o, own)
	if !own {
		s.resume(true)
	}
	for _, m := range s.models {
		m.again = Change{}
		i := slices.IndexFunc(o.Plans, func(p policies.Plan) bool { return p.Model == m.Name })
		if i < 0 || o.Plans[i].Validate() != nil {
			if o.Epoch < s.epoch && len(m.plan.Stages) > 0 {
				m.again = Change{Reason: "the stored object was older and without the plan", Stages: m.plan.Stages}
			}
			continue
		}
		p := o.Plans[i]
		switch {
		case p.Epoch > m.plan.Epoch || len(m.plan.Stages) == 0:
			m.plan, s.dirty = p, true
			s.place(m)
			m.decider.reset(len(p.Stages))
			s.measure(now, m)
		case p.Epoch < m.plan.Epoch:
			m.again = Change{Reason: "the stored plan was older", Stages: m.plan.Stages}
		case !samePlan(p, m.plan):
			m.again = Change{Reason: "the stored plan was edited under its epoch", Stages: p.Stages}
		}
	}
	if o.Epoch >= s.epoch {
		s.epoch = o.Epoch
		s.remember(o)
	}
	s.pending, s.uneasy = nil, true
	s.remark(now)
	s.forget(now)
}

// place notes in each replica which stage it is in.
func (s *State) place(m *model) {
	for _, r := range s.replicas {
		if r.Model == m.Name {
			r.stage = -1
		}
	}
	for i, stage := range m.plan.Stages {
		for _, id := range stage.Replicas {
			if r := s.serving(m, id); r != nil {
				r.stage = i
			}
		}
	}
}

// setReplicas takes a new configured list.
func (s *State) setReplicas(now time.Time, list []policies.Replica) {
	listed := make(map[policies.ReplicaID]bool, len(list))
	for _, c := range list {
		listed[c.ID] = true
		r := s.byID[c.ID]
		if r == nil {
			r = &replica{stage: -1, weight: Neutral, health: resources.Unhealthy}
			if !s.begun {
				// A control plane that starts has heard of nobody; the engines
				// may well have been there all the time.
				r.assumed = now.Add(s.rules.Grace)
			}
			s.replicas = append(s.replicas, r)
			s.byID[c.ID] = r
		}
		if !r.Replica.Equal(c) || r.gone {
			s.dirty = true
		}
		if r.Model != "" && r.Model != c.Model {
			r.renew()
		}
		r.Replica, r.gone = c, false
		if !s.begun {
			r.restore(now, s.kept[c.ID])
		}
	}
	s.retell()
	for _, r := range s.replicas {
		if !listed[r.ID] && !r.gone {
			r.gone, s.dirty = true, true
		}
	}
	s.moved()
	s.begun, s.uneasy, s.dirty, s.kept = true, true, true, nil
	s.remark(now)
	for _, m := range s.models {
		s.place(m)
	}
	s.forget(now)
}

// reported takes one report in.
func (s *State) reported(now time.Time, report Report) {
	r := s.byID[report.Replica]
	if r == nil {
		return
	}
	m := s.model(r.Model)
	r.note = report.Note
	switch {
	case len(report.Flow.Edges) > 0 && !sameEdges(report.Flow.Edges, m.Edges):
		r.note = "flow ignored: its buckets are not those of the control plane; give both the same context"
		report.Snapshot = nil
	}
	if r.tell(report.Site) {
		s.moved()
	}
	if why := r.elsewhere(); why != "" && r.note == "" {
		r.note = why
	}
	r.take(now, report)
	s.judge(now, r, claimOf(report))
	s.refresh(now, r)
}

// refresh computes a replica's health anew.
func (s *State) refresh(now time.Time, r *replica) {
	if r.refresh(now, s.rules.Grace) {
		s.uneasy, s.unwell = true, true
		s.dirty = s.dirty || s.lease == nil
	}
}

// tick lets time pass: health, weights, bytes per token.
func (s *State) tick(now time.Time) {
	for _, r := range s.replicas {
		s.refresh(now, r)
	}
	for _, m := range s.models {
		m.decider.observe(s.paces(now, m))
		s.measure(now, m)
	}
	if now.Sub(s.weighed) >= weighEvery {
		s.weighed = now
		for _, m := range s.models {
			if s.weigh(now, m) && s.lease == nil {
				s.dirty = true
			}
		}
	}
	s.forget(now)
}

// forget drops the replicas that are out of the configuration, out of every
// plan, and whose flow has faded.
func (s *State) forget(now time.Time) {
	s.replicas = slices.DeleteFunc(s.replicas, func(r *replica) bool {
		drop := r.gone && r.stage < 0 && (r.at.IsZero() || fade(now.Sub(r.at), s.rules.Grace, s.rules.HalfLife) == 0)
		if drop {
			delete(s.byID, r.ID)
		}
		return drop
	})
}

func (s *State) model(name string) *model {
	for _, m := range s.models {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// Admits says why a report cannot be taken in: its replica is not configured,
// or serves another model.
func (s *State) Admits(report Report) error {
	r := s.byID[report.Replica]
	if r == nil || r.gone {
		return fmt.Errorf("replica %q is not configured: add it to the control plane's replicas", report.Replica)
	}
	if r.Model != report.Model {
		return fmt.Errorf("replica %q is configured for model %q and reports for %q", report.Replica, r.Model, report.Model)
	}
	return nil
}

// Snapshot returns the state as it is.
func (s *State) Snapshot(now time.Time) *Snapshot {
	snap := &Snapshot{
		Time: now, Epoch: s.epoch, History: slices.Clone(s.history),
		Past: s.object.Past, Refused: s.object.Refused, Planner: s.planner(now),
	}
	for _, m := range s.models {
		state := ModelState{
			Name: m.Name, Context: m.Context, Hosts: m.Hosts, Plan: m.plan,
			Reason: m.reason, Planner: m.planner, BytesPerToken: m.ratio, Flow: s.flow(now, m),
			Refining: s.rules.Refine == RefineOn, Pin: s.pinned(m.Name), Links: m.Links,
		}
		state.LearntBytesPerToken, state.EstimateError = s.learnt(now, m)
		state.Seen = state.Flow.Seen
		for _, r := range s.replicas {
			if r.Model != m.Name || r.gone && r.stage < 0 {
				continue
			}
			weight, health := s.served(r)
			state.Replicas = append(state.Replicas, ReplicaState{
				Replica: r.Replica, Stage: r.stage, Health: health, Weight: weight,
				Load: r.report.Load, Reported: r.at, Connected: r.open, Note: r.doubts(), Figure: r.figure,
				Asked: r.asked, Stopping: r.report.Draining, Settling: r.report.Settling, Routes: r.report.Routes, Site: r.place(),
			})
		}
		snap.Models = append(snap.Models, state)
	}
	return snap
}
