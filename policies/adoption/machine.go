// Package adoption is plan adoption with hysteresis and plan rollback: it decides when
// a partitioner's proposal replaces the plan in force, and when a plan that performs
// worse than predicted is rolled back. With Always it adopts every new proposal.
//
// It makes no proposals and changes no plan itself; it compares a Planner's
// predictions with each other and with measurements. A Machine is a pure state
// machine: it reads no clock, and equal inputs give equal decisions.
//
// Invariant: a plan that Step adopts is valid, holds exactly the replicas that are
// not draining, and either was within the planner's limits when it was adopted, or
// is the plan before with as few changes as possible.
package adoption

import (
	"errors"
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// A Planner proposes divisions of a fleet and predicts the cost of a given one. Both
// methods are pure.
type Planner interface {
	policies.Partitioner
	// Price predicts the cost and iteration times of a division for the workload's flow, in
	// the unit of Partition. Cuts need not lie on bucket edges. The error is
	// policies.ErrInfeasible if a stage breaks a limit, with the iteration times filled in
	// nevertheless, and a *policies.Violation for an invalid workload.
	Price(w policies.Workload, cuts []policies.Tokens, counts []int) (policies.Partition, error)
}

// Reason says why Step decided as it did.
type Reason string

// The reasons to adopt a plan, followed by those to keep the one in force.
const (
	FirstPlan       Reason = "first plan"                     // there was no plan: one stage
	BetterPlan      Reason = "better plan"                    // the predicted gain is large enough
	NewProposal     Reason = "plan for the next period"       // Always adopts what the planner proposes
	OverLimits      Reason = "plan in force over its limits"  // and the new plan is not
	Merged          Reason = "stages not worth it"            // the stages gain too little: one stage
	RolledBack      Reason = "iterations slower than planned" // the previous plan again
	ReplicasChanged Reason = "replicas changed"               // the cuts stay

	WaitingForPeriod Reason = "waiting for the next period"
	NoReplicas       Reason = "no replica to plan for"
	WarmingUp        Reason = "too few requests seen"
	HeldOff          Reason = "held off after a plan rollback"
	Infeasible       Reason = "no plan is within the limits"
	SmallGain        Reason = "gain too small"
	NotNeeded        Reason = "one stage is within its limits" // and requests are placed by price
	AlreadyBest      Reason = "plan in force is the best"
	InvalidWorkload  Reason = "invalid workload"
)

// Input is the state of one model at one time.
type Input struct {
	Now   float64       // seconds, on any monotonic scale
	Plan  policies.Plan // in force; without stages if there is none
	Model string        // the model of the first plan
	// Replicas are all replicas of the model. Draining ones get no stage.
	Replicas []policies.Replica
	// Workload is the planner's input. Step sets its Replicas.
	Workload policies.Workload
	// Iterations is the measured mean iteration time of each stage of Plan since the last
	// period, in seconds; 0 for a stage that was idle. A slice of another length than the
	// plan's stages counts as no measurement.
	Iterations []float64
	// Proximity, if not nil, prices the migrations of each plan from the positions of its
	// replicas and influences which replicas a stage gets. Proposals are made with
	// Workload.Transfer, because their stages have no replicas yet. If it is nil, every
	// migration costs Workload.Transfer.
	Proximity *links.CostMap
	// PackHosts is Assigner.PackHosts.
	PackHosts bool
}

// assigner returns the Assigner for this input.
func (in Input) assigner() Assigner {
	return Assigner{Map: in.Proximity, Flow: in.Workload.Flow, PackHosts: in.PackHosts}
}

// Decision is the result of a Step.
type Decision struct {
	Adopt  bool
	Plan   policies.Plan // to put in force if Adopt, else the plan in force; the caller sets the epoch
	Reason Reason
	// Gain and Moved describe the plan that was compared with the present one, adopted or
	// not: the predicted saving as a share of the objective, moves included, and how many
	// replicas get another range. They are 0 if no plan was compared.
	Gain  float64
	Moved int
	// Present is the price of the plan in force at the present flow, Proposal is the
	// planner's partition; zero if not computed.
	Present, Proposal policies.Partition
	Err               error // why the workload is invalid; nil for all other reasons
}

// Machine decides for one model. It is not safe for concurrent use.
type Machine struct {
	config     Config
	nextPeriod float64 // when the next period begins

	cuts            []policies.Tokens // of the last plan in force
	previous        policies.Plan     // the plan before it; no stages if unknown
	adoptedAt       float64           // when it was adopted
	settlingWindows int               // windows left that are not judged
	slowWindows     int               // consecutive slow windows

	// bias is the ratio of measured to predicted iteration time of a single stage, at least
	// 1: it stands for what the cost model leaves out, which slows every plan. 0 means
	// that it was never measured.
	bias float64

	followed proposal // the last one that Always adopted

	heldUntil     float64 // no new plan is adopted before this time
	holdOffLength float64 // length of the last hold-off; 0: none, or reset
}

// New returns a machine without history.
func New(c Config) (*Machine, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	return &Machine{config: c, nextPeriod: math.Inf(-1), heldUntil: math.Inf(-1)}, nil
}

// Step decides whether the plan in force stays. It may be called at any time: once per
// period it compares plans and evaluates the measurements; in between it only reacts
// to a plan that lacks a replica or has one too many. A plan to adopt should be put in
// force before the next call; if it is not, or another planner changes the plan, the
// machine continues from the plan it finds.
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
		m.nextPeriod = in.Now + m.config.Period
		return Decision{Adopt: true, Plan: one, Reason: FirstPlan}
	}
	if cuts := in.Plan.Cuts(); !slices.Equal(cuts, m.cuts) {
		m.recordPlan(in.Now, policies.Plan{}, in.Plan) // adopted by another planner
	}
	present := withReplicas(in.assigner(), in.Plan, in.Replicas, w.Replicas)
	if equalStages(present, in.Plan) {
		if in.Now < m.nextPeriod {
			return keepPlan(in.Plan, WaitingForPeriod)
		}
		m.nextPeriod = in.Now + m.config.Period
		if m.config.Adopt == Always {
			return m.follow(in, w)
		}
		return m.comparePlans(in, w, in.Plan)
	}
	// The measurements belong to the old stages, and the change cannot wait for a period.
	m.nextPeriod = in.Now + m.config.Period
	in.Iterations = nil
	d := keepPlan(present, ReplicasChanged)
	if m.config.Adopt != Always {
		d = m.comparePlans(in, w, present)
	}
	if !d.Adopt {
		d.Adopt, d.Reason, d.Gain, d.Moved = true, ReplicasChanged, 0, CountMoves(in.Plan, present)
	}
	return d
}

// comparePlans compares the plan in force, which is present or is about to be, with the
// alternatives.
func (m *Machine) comparePlans(in Input, w policies.Workload, present policies.Plan) Decision {
	// Headroom is required of new plans only: a plan in force is kept through a moment of
	// more work than it was made for.
	inForce := w
	inForce.Limits.Pooling, inForce.Limits.Utilisation = 0, 0
	inForce.Transfer = in.assigner().transfer(present, w.Transfer)
	priced, err := m.config.Planner.Price(inForce, present.Cuts(), countsOf(present))
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

// recordPlan records that plan replaces before.
func (m *Machine) recordPlan(now float64, before, plan policies.Plan) {
	m.cuts, m.previous, m.adoptedAt = plan.Cuts(), before, now
	m.settlingWindows, m.slowWindows = 1, 0
}

// HoldOff holds off new plans as a rollback does: for a minute, or twice as long
// as the last time. It is for rollbacks that were not decided here.
func (m *Machine) HoldOff(now float64) {
	m.holdOffLength = min(max(2*m.holdOffLength, firstHoldOff/m.config.Speed), maxHoldOff/m.config.Speed)
	m.heldUntil, m.followed = now+m.holdOffLength, proposal{}
}

// HoldOffState returns the end of the last hold-off, which may have passed, and its
// length; zeros if there was none or it was reset.
func (m *Machine) HoldOffState() (until, length float64) {
	if m.holdOffLength == 0 {
		return 0, 0
	}
	return m.heldUntil, m.holdOffLength
}

// RestoreHoldOff restores the result of HoldOffState of an earlier process or of
// another machine of the same model. Zeros reset it.
func (m *Machine) RestoreHoldOff(until, length float64) {
	m.heldUntil, m.holdOffLength = until, min(max(length, 0), maxHoldOff/m.config.Speed)
	if m.holdOffLength == 0 {
		m.heldUntil = math.Inf(-1)
	}
}

// keepPlan is the decision to keep a plan in force.
func keepPlan(p policies.Plan, why Reason) Decision { return Decision{Plan: p, Reason: why} }
