package fleet

import (
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/store"
)

// State is the fleet as a state machine: Step applies an event and returns the effects
// to carry out. It reads no clock, does no I/O and starts nothing; the same events at
// the same times give the same effects. It is not safe for concurrent use.
//
// Invariants, after every Step:
//  1. a plan is published only after it was stored: only Stored puts a plan in force,
//  2. a plan in force is valid, and changes only with a growing epoch,
//  3. while a model has a ready replica, every stage has one, or a proposal
//     that gives it one waits for its answer or for its retry,
//  4. weights change at most once a second, by one step each,
//  5. boundaries change at most once a second between two plans,
//  6. with Rules.Shared, only the holder of the lease makes plans, and all else that is
//     published is stored or configured, too, but for the health of the replicas: that
//     is this control plane's own sight.
type State struct {
	rules    Rules // with defaults
	registry *fleetstate.Registry
	models   []*model
	epoch    policies.Epoch
	lease    *store.LeaseMachine // nil unless the store is shared
	object   store.Object        // as last stored, here or elsewhere
	history  []fleetstate.Change
	proposal *Proposal // waiting for its answer; nil: none
	planning *Planning // runs, or has run and waits for the proposal's answer; nil: none

	started    time.Time // of the first step; zero: none yet
	retryAt    time.Time // no proposal earlier than this, after one that was not stored
	tickedAt   time.Time // the last tick
	weighedAt  time.Time
	refinedAt  time.Time // when boundaries were last proposed
	refineNext bool      // boundaries were due at the last planning of a period, and come before the next one
	scaledAt   time.Time // when numbers of replicas were last recommended
	recordedAt time.Time // when the leader last stored the state of the replicas

	orderedSlots *[]policyslots.Slot // commanded by an operator, to be stored; nil: none
	toStore      pendingWrite        // beside plans

	leader, lastLeader string // the holder of the lease in force, and the last one
	leaderChanges      uint64

	healthChanges []fleetstate.HealthChange // since the last effects

	held    *HeldRemoval // the last configured list, if it has to be confirmed; nil: it is applied
	confirm string       // the digest that an operator confirms, to be stored; "": none

	// writeAgain says that the stored object has disappeared, or that the only control plane could not
	// write it: until a write succeeds, nothing else shows that the store works again.
	writeAgain     bool
	publishPending bool // a published value has changed
	needsRepair    bool // a plan in force may need repair
	healthChanged  bool // the health of some replica has changed
}

// model is one model's part of a State.
type model struct {
	Model
	planner    *planner.Planner
	reason     string         // why the plan in force replaced the one before
	storeAgain planner.Change // see State.storeAgainChange; no stages: none
	ratio      length.Ratio   // bytes per token served
	// requests are those that front ends have counted. It never decreases, and continues
	// at the leader's count where several control planes share a store.
	requests    uint64
	askedAt     time.Time             // when a first plan or boundaries were last asked for
	periodAt    time.Time             // when the last period was planned
	wantedRatio length.Ratio          // to be served; ratio follows when this is stored
	planOrder   *fleetstate.PlanOrder // commanded by an operator, until it is stored; nil: none
	scaler      *planner.Scaler
	scaling     Scaling           // as of the last period
	workload    policies.Workload // of scaling
	demand      demandMeter
	service     serviceMeter
}

// pendingWrite is the most urgent reason to write the object apart from plans.
type pendingWrite uint8

const (
	noWrite      pendingWrite = iota
	writeCleanup              // the object mentions replicas that left; the leader removes them
	writeOrder                // an operator waits for the answer
)

// retryDelay is how long a State waits after a proposal that was not stored.
const retryDelay = time.Second

// NewState returns a State without replicas or plans.
func NewState(rules Rules) (*State, error) {
	if err := rules.validate(); err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	rules = rules.withDefaults()
	s := &State{rules: rules, registry: fleetstate.New(fleetstate.Config{Grace: rules.Grace, HalfLife: rules.HalfLife, Shared: rules.Shared})}
	if rules.Shared {
		s.lease = store.NewLeaseMachine(rules.Name)
	}
	policy, err := planner.PolicyNamed(rules.Policy)
	if err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	policy = policy.WithStageReplicas(rules.StageReplicas)
	for _, m := range rules.Models {
		p, err := planner.New(planner.Config{
			Model: m.Name, Context: m.Context, Edges: m.Edges, QoE: m.QoE, Cost: m.Cost, Transfer: m.Transfer, TokenBytes: m.TokenBytes, Links: m.Links, Limits: m.Limits,
			Policy: policy, Refine: rules.refines(), Adopt: rules.Adopt, IterationRatio: rules.IterationRatio, History: m.History, Speed: rules.Speed, Period: micros(rules.Period), Grace: micros(rules.Grace), Seen: rules.Seen,
			Check: rules.Check, Wrap: rules.Wrap,
		})
		if err != nil {
			return nil, fmt.Errorf("fleet: %w", err)
		}
		s.models = append(s.models, &model{Model: m, planner: p, ratio: m.BytesPerToken, wantedRatio: m.BytesPerToken})
	}
	if err := s.newScalers(); err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	return s, nil
}

// micros returns a time as policies count it, since the first step.
func (s *State) micros(t time.Time) policies.Micros { return micros(t.Sub(s.started)) }

func duration(t policies.Micros) time.Duration { return time.Duration(t) * time.Microsecond }

func micros(d time.Duration) policies.Micros { return policies.Micros(d.Microseconds()) }

// Step applies an event that happened at now. now must not go back.
func (s *State) Step(now time.Time, ev Event) Effects {
	s.Apply(now, ev)
	return s.effects(now, ev)
}

// Apply is Step for one of many events whose effects can wait for the next Step: a repair and a snapshot of a large fleet
// take milliseconds each.
func (s *State) Apply(now time.Time, ev Event) {
	if s.started.IsZero() {
		s.started = now
	}
	switch ev := ev.(type) {
	case Tick:
		s.handleTick(now)
	case Replicas:
		s.configure(now, ev.List)
	case Reported:
		s.handleReport(now, &ev.Report)
	case ProxiesReported:
		s.handleProxyLoads(now, ev.Loads)
	case StreamClosed:
		if r := s.registry.Get(ev.Replica); r != nil {
			r.Connected = false
		}
	case Ordered:
		s.handleOrder(now, ev)
	case Planned:
		s.planning.ran = true
	case Stored:
		s.handleStored(now, ev.Object)
	case Vanished:
		s.writeAgain = true
	case NotStored:
		s.handleNotStored(now)
	}
}

// effects proposes the writes that are due, and publishes when no proposal waits for
// its answer.
func (s *State) effects(now time.Time, ev Event) Effects {
	e := Effects{Health: s.healthChanges, Leader: s.leaderChange(now)}
	s.healthChanges = nil
	if s.proposal == nil && s.registry.Configured() {
		e.Propose = s.duePropose(now)
	}
	e.Plan = s.startPlanning(now, ev)
	if s.proposal == nil && s.publishPending && s.hasPlans() {
		s.publishPending = false
		e.Publish = s.Snapshot(now)
	}
	return e
}

// hasPlans reports whether every model has a plan.
func (s *State) hasPlans() bool {
	for _, m := range s.models {
		if len(m.planner.Plan().Stages) == 0 {
			return false
		}
	}
	return s.registry.Configured()
}

// handleNotStored drops the proposal that was not stored, and the orders in it.
func (s *State) handleNotStored(now time.Time) {
	if s.proposal == nil {
		return
	}
	if s.proposal.withLease {
		s.lease.WriteFailed(now)
	}
	for _, m := range s.models {
		if m.planOrder != nil {
			s.restoreHold(now, m, s.object.Holds)
		}
	}
	s.proposal, s.retryAt, s.needsRepair = nil, now.Add(retryDelay), true
	s.writeAgain = s.writeAgain || s.lease == nil // with a lease, its renewals write
	s.resetOrders(now)
}

// handleStored puts stored plans in force. Plans of models that the fleet does not
// serve are ignored: the store may be older than the program. A stored plan that
// cannot come into force is proposed again under a new epoch, so that the store and
// the fleet agree; see storeAgainChange.
func (s *State) handleStored(now time.Time, o store.Object) {
	own := s.proposal != nil
	s.applyObject(now, o, own)
	if !own {
		for _, m := range s.models {
			s.restoreHold(now, m, o.Holds)
		}
	}
	for _, m := range s.models {
		m.storeAgain = planner.Change{}
		inForce := m.planner.Plan()
		i := slices.IndexFunc(o.Plans, func(p policies.Plan) bool { return p.Model == m.Name })
		if i < 0 || o.Plans[i].Validate() != nil {
			if o.Epoch < s.epoch && len(inForce.Stages) > 0 {
				m.storeAgain = planner.Change{Reason: "the stored object was older and without the plan", Stages: inForce.Stages}
			}
			continue
		}
		p := o.Plans[i]
		switch {
		case p.Epoch > inForce.Epoch || len(inForce.Stages) == 0:
			s.registry.RecordStages(m.Name, p)
			m.planner.SetPlan(s.registry.View(now, m.Name), p)
			s.publishPending = true
		case p.Epoch < inForce.Epoch:
			m.storeAgain = planner.Change{Reason: "the stored plan was older", Stages: inForce.Stages}
		case !planner.SameRouting(p, inForce):
			m.storeAgain = planner.Change{Reason: "the stored plan was edited under its epoch", Stages: p.Stages}
		}
	}
	if o.Epoch >= s.epoch {
		s.epoch = o.Epoch
		s.restoreHistory(o)
	}
	s.proposal, s.needsRepair, s.writeAgain = nil, true, false
	s.resetOrders(now)
	s.configureHeld(now)
	s.registry.Forget(now)
}

// restoreHold sets the hold-off of a model's planner to the stored one, or to none. None lasts longer than its length
// from now, whatever the clock of its writer showed.
func (s *State) restoreHold(now time.Time, m *model, holds []store.Hold) {
	var until, length policies.Micros
	for _, h := range holds {
		if h.Model == m.Name {
			until, length = min(s.micros(h.Until), s.micros(now.Add(h.For))), micros(h.For)
		}
	}
	m.planner.RestoreHold(until, length)
}

// restoreHistory replaces the history by that of a stored object.
func (s *State) restoreHistory(o store.Object) {
	known := s.history
	if s.proposal != nil {
		known = slices.Concat(known, s.proposal.Changes)
	}
	s.history = fleetstate.FromStored(o, known)
	for _, m := range s.models {
		m.reason = ""
		for _, c := range s.history {
			if c.Model == m.Name && c.Epoch == m.planner.Plan().Epoch && c.Replaces() {
				m.reason = c.Reason
			}
		}
	}
}

// configure applies a new configured list, unless it has to be confirmed first.
func (s *State) configure(now time.Time, list []policies.Replica) {
	if h := s.heldRemoval(now, list); h != nil {
		if s.held == nil || s.held.Digest != h.Digest {
			s.held = h
		}
		return
	}
	s.held = nil
	first := !s.registry.Configured()
	s.registry.Configure(now, list)
	s.resetDistances()
	s.needsRepair, s.publishPending = true, true
	s.resetOrders(now)
	for _, m := range s.models {
		s.registry.RecordStages(m.Name, m.planner.Plan())
		if first {
			m.requests = max(m.requests, s.registry.Seen(m.Name)) // those of an earlier process
		}
	}
	s.registry.Forget(now)
}

func (s *State) resetDistances() {
	for _, m := range s.models {
		m.planner.ResetDistances()
	}
}

// handleTick updates health, weights and measurements as time passes.
func (s *State) handleTick(now time.Time) {
	s.tickedAt = now
	for _, r := range s.registry.All() {
		s.refresh(now, r)
	}
	for _, m := range s.models {
		m.planner.Tick(s.registry.View(now, m.Name))
	}
	if now.Sub(s.weighedAt) >= duration(balance.WeightInterval) {
		s.weighedAt = now
		for _, m := range s.models {
			if s.updateWeights(now, m) && s.lease == nil {
				s.publishPending = true
			}
		}
	}
	s.updateScaling(now)
	s.measure(now)
	s.registry.Forget(now)
}

func (s *State) model(name string) *model {
	for _, m := range s.models {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// Counters returns what a restart of the State would lose apart from its plans.
func (s *State) Counters(now time.Time) fleetstate.Counters {
	var ratios []fleetstate.ModelRatio
	for _, m := range s.models {
		ratios = append(ratios, fleetstate.ModelRatio{Name: m.Name, BytesPerToken: m.ratio})
	}
	return s.registry.Counters(now, ratios)
}

// RestoreCounters reads encoded Counters. It is called before the first
// Replicas event. An error leaves the State unchanged.
func (s *State) RestoreCounters(data []byte) error {
	ratios, err := s.registry.RestoreCounters(data)
	if err != nil {
		return err
	}
	for _, r := range ratios {
		if m := s.model(r.Name); m != nil {
			m.ratio, m.wantedRatio = r.BytesPerToken, r.BytesPerToken
		}
	}
	return nil
}
