// Package adoption decides when a fleet changes its plan: when a partitioner's
// proposal is worth a change, and when a plan that disappoints is taken back.
//
// It plans nothing itself and moves nobody; it weighs a Planner's predictions
// against each other and against what was measured. A Machine is a pure state
// machine: it reads no clock and starts nothing, and one sequence of inputs
// gives one sequence of decisions.
//
// The invariant: a plan that Step adopts is valid, holds exactly the replicas
// that are not draining, and was either within the planner's limits when it
// was adopted, or the nearest thing to the plan before.
package adoption

import (
	"errors"
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/proximity"
)

// A Planner proposes divisions of a fleet and predicts what a given one costs.
// Both methods are pure.
type Planner interface {
	policies.Partitioner
	// Price predicts cost and iteration times of a division at the workload's
	// flow, in the unit of Partition. Cuts may lie anywhere. The error is
	// policies.ErrInfeasible, with the iteration times nevertheless filled in,
	// when a stage breaks a limit, and a *policies.Violation for an invalid
	// workload.
	Price(w policies.Workload, cuts []policies.Tokens, counts []int) (policies.Partition, error)
}

// Reason says why Step decided as it did.
type Reason string

// The reasons to adopt a plan, then those to keep the one in force.
const (
	FirstPlan       Reason = "first plan"                     // there was none: one stage
	BetterPlan      Reason = "better plan"                    // the predicted gain is large enough
	OverLimits      Reason = "plan in force over its limits"  // and another one is not
	Merged          Reason = "stages not worth it"            // back to one stage
	RolledBack      Reason = "iterations slower than planned" // back to the plan before
	ReplicasChanged Reason = "replicas changed"               // the cuts stay

	WaitingForPeriod Reason = "waiting for the next period"
	NoReplicas       Reason = "no replica to plan for"
	WarmingUp        Reason = "too few requests seen"
	HeldOff          Reason = "held off after a roll-back"
	Infeasible       Reason = "no plan is within the limits"
	SmallGain        Reason = "gain too small"
	AlreadyBest      Reason = "plan in force is the best"
	InvalidWorkload  Reason = "invalid workload"
)

// Input is what a Machine looks at: one model at one time.
type Input struct {
	Now   float64       // seconds, on any scale that does not go back
	Plan  policies.Plan // in force; without stages when there is none
	Model string        // the plan's model, for the first one
	// Replicas are all replicas of the model. Those that drain take no part.
	Replicas []policies.Replica
	// Workload is what the planner may know. Its Replicas is set by Step.
	Workload policies.Workload
	// Iterations is the measured mean iteration time of each stage of Plan
	// since the last period, in seconds; 0 where nothing ran. Any other length
	// than the plan's counts as nothing measured.
	Iterations []float64
	// Proximity prices the hand-overs of each plan that is weighed by who is in its stages,
	// and has a say in who that is; proposals are made with Workload.Transfer, because
	// nobody is in their stages yet. nil: all hand-overs cost Workload.Transfer.
	Proximity *proximity.Map
}

// assigner is what Step knows of distances.
func (in Input) assigner() Assigner { return Assigner{in.Proximity, in.Workload.Flow} }

// Decision is what Step decided.
type Decision struct {
	Adopt  bool
	Plan   policies.Plan // to put in force if Adopt, else the one in force; the epoch is the caller's to give
	Reason Reason
	// Gain and Moved are of the plan that was weighed against the present one,
	// adopted or not: the share of the objective that it is predicted to save,
	// moves charged, and how many replicas it gives another range. 0 where
	// nothing was compared.
	Gain  float64
	Moved int
	// Present prices the plan in force at the present flow, Proposal is the
	// planner's; zero where they were not asked for.
	Present, Proposal policies.Partition
	Err               error // why the workload is invalid; nil but for Invalid
}

// Machine decides for one model. It is not safe for concurrent use.
type Machine struct {
	config     Config
	nextPeriod float64 // when the next period begins

	cuts            []policies.Tokens // of the plan that was last in force
	previous        policies.Plan     // what it replaced; no stages when that is unknown
	adoptedAt       float64           // when it came
	settlingWindows int               // windows that are not judged yet
	slowWindows     int               // bad windows in a row

	// bias is measured over predicted iteration time, at least 1, as one stage
	// shows it: what the model leaves out slows every plan. 0: never measured.
	bias float64

	heldUntil     float64 // no new plan before this time
	holdOffLength float64 // how long the last roll-back holds off; 0: none, or forgiven
}

// New returns a machine that has seen nothing.
func New(c Config) (*Machine, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	return &Machine{config: c, nextPeriod: math.Inf(-1), heldUntil: math.Inf(-1)}, nil
}

// Step decides whether the plan in force stays. It may be called at any time:
// once a period it compares plans and judges what was measured; in between it
// only answers to a plan that lacks a replica or has one too many. A decision
// to adopt should be put in force before the next call; if it is not, or
// somebody else changes the plan, the machine goes on from what it then finds.
func (m *Machine) Step(in Input) Decision {
	w := in.Workload
	w.Replicas = 0
	for _, r := range in.Replicas {
		if !r.Draining {
			w.Replicas++
		}
	}
	if w.Replicas == 0 {
		return keepPlan(in.Plan, NoReplicas)
	}
	if in.Plan.Validate() != nil {
		one := in.assigner().Assign(policies.Plan{Model: in.Model, Epoch: in.Plan.Epoch}, oneStage(w.Replicas), in.Replicas)
		m.recordPlan(in.Now, policies.Plan{}, one)
		m.nextPeriod = in.Now + m.config.Period
		return Decision{Adopt: true, Plan: one, Reason: FirstPlan}
	}
	if cuts := cutsOf(in.Plan); !slices.Equal(cuts, m.cuts) {
		m.recordPlan(in.Now, policies.Plan{}, in.Plan) // not from here
	}
	present := withReplicas(in.assigner(), in.Plan, in.Replicas, w.Replicas)
	if equalStages(present, in.Plan) {
		if in.Now < m.nextPeriod {
			return keepPlan(in.Plan, WaitingForPeriod)
		}
		m.nextPeriod = in.Now + m.config.Period
		return m.comparePlans(in, w, in.Plan)
	}
	// The measurements are of other stages, and the change cannot wait.
	m.nextPeriod = in.Now + m.config.Period
	in.Iterations = nil
	d := m.comparePlans(in, w, present)
	if !d.Adopt {
		d.Adopt, d.Reason, d.Gain, d.Moved = true, ReplicasChanged, 0, CountMoves(in.Plan, present)
		m.cuts = cutsOf(present)
	}
	return d
}

// comparePlans weighs the plan in force, which is present or will be at once,
// against the alternatives.
func (m *Machine) comparePlans(in Input, w policies.Workload, present policies.Plan) Decision {
	// Head room is asked of new plans alone: one in force is not given up for a
	// moment of more work than it was made for.
	inForce := w
	inForce.Limits.Pooling, inForce.Limits.Utilisation = 0, 0
	inForce.Transfer = in.assigner().transfer(present, w.Transfer)
	priced, err := m.config.Planner.Price(inForce, cutsOf(present), countsOf(present))
	over := errors.Is(err, policies.ErrInfeasible)
	if err != nil && !over {
		d := keepPlan(present, InvalidWorkload)
		d.Err = err
		return d
	}
	d := m.decide(in, w, present, priced, over)
	d.Present = priced
	if d.Adopt {
		m.recordPlan(in.Now, present, d.Plan)
		if d.Reason == RolledBack {
			m.previous = policies.Plan{}
		}
	}
	return d
}

// recordPlan takes note that plan replaces before.
func (m *Machine) recordPlan(now float64, before, plan policies.Plan) {
	m.cuts, m.previous, m.adoptedAt = cutsOf(plan), before, now
	m.settlingWindows, m.slowWindows = 1, 0
}

// HoldOff keeps new plans away as a roll-back does: for the Config's HoldOff, or
// twice as long as the last time. It is for plans that somebody else takes back.
func (m *Machine) HoldOff(now float64) {
	m.holdOffLength = min(max(2*m.holdOffLength, m.config.HoldOff), m.config.HoldOffMax)
	m.heldUntil = now + m.holdOffLength
}

// HoldOffState returns until when new plans are kept away, which may be over, and how
// long the last roll-back did so; 0 when that is forgiven, or there was none.
func (m *Machine) HoldOffState() (until, length float64) {
	if m.holdOffLength == 0 {
		return 0, 0
	}
	return m.heldUntil, m.holdOffLength
}

// RestoreHoldOff makes what Held returned of an earlier life, or of another machine that
// decided for the same model, count here. Zeros forgive.
func (m *Machine) RestoreHoldOff(until, length float64) {
	m.heldUntil, m.holdOffLength = until, min(max(length, 0), m.config.HoldOffMax)
	if m.holdOffLength == 0 {
		m.heldUntil = math.Inf(-1)
	}
}

// keepPlan is the decision to leave a plan in force.
func keepPlan(p policies.Plan, why Reason) Decision { return Decision{Plan: p, Reason: why} }
