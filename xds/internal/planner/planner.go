// Package planner makes the plans of one model: it proposes the first plan, repairs a
// plan whose stages lose their ready replicas (Repair), plans anew every period
// (Replan), moves boundaries to where the replicas propose them (Refine), and works out
// which plan an operator's pin or rollback leads to (Revive).
//
// A Planner reads the replicas from a registry and only decides: its owner stores each
// Change that it proposes and calls SetPlan when that is done. It reads no clock, does
// no I/O and is not safe for concurrent use.
//
// Invariant: a proposed plan is valid and routes differently from the one in force. The
// site's rules are asked about plans that Replan adopts for a gain and boundaries that
// Refine moves; repairs, rollbacks and returns to a pinned plan are proposed even if the
// rules would deny them.
package planner

import (
	"math"
	"strconv"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/proximity"
	"github.com/cascadeinfer/cascade/xds/internal/planhistory"
	"github.com/cascadeinfer/cascade/xds/internal/planrepair"
	"github.com/cascadeinfer/cascade/xds/internal/registry"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Config is the configuration of a Planner. All fields but Check and Wrap are
// required.
type Config struct {
	Model    string
	Context  policies.Tokens // the longest sequence
	Edges    []policies.Tokens
	QoE      policies.QoE  // prices snapshots
	Cost     policies.Cost // prices flows
	Transfer policies.Transfer
	// TokenBytes is the size of one token's KV in bytes; 0: all migrations cost Transfer,
	// wherever the replicas are.
	TokenBytes float64
	Links      links.Rates
	Limits     policies.Limits

	Registry *registry.Registry
	Policy   Policy
	Refine   bool // the replicas move boundaries between two planning periods
	Follow   bool // every new proposal is adopted; see adoption.Config
	Speed    float64
	Period   time.Duration
	// Grace is how long a stage may be without a ready replica while most replicas
	// are missing.
	Grace time.Duration
	Seen  uint64 // requests counted before the fleet leaves its first plan
	// History is the workload that the first plan is made for: its Flow, with these Edges,
	// and its Snapshot. Without edges the first plan is one stage.
	History policies.Workload
	// Author is the name of this control plane in the history.
	Author string
	// Check returns an error for stages that the site's rules deny as the next plan;
	// nil denies nothing.
	Check func(before policies.Plan, next []policies.Stage) error
	// Wrap returns the planner to use in place of the native one; nil: the native one.
	Wrap func(model string, native adoption.Planner) adoption.Planner
}

// Planner decides about one model's plan.
type Planner struct {
	cfg     Config
	machine *adoption.Machine // nil: one stage, always
	native  adoption.Planner  // of the machine
	zero    time.Time         // time 0 of the adoption machine

	plan    policies.Plan         // in force; no stages: none yet
	initial bool                  // plan is the first one, or a repair of it
	window  []registry.Pace       // per stage: the sum of the ticks' paces since the last reset
	period  registry.Period       // the requests since the last planning period; only for the paper's policy
	held    []float64             // mean held tokens per stage, as of the last tick; -1: unknown
	bounds  []loadreport.Boundary // between the stages, as of the last tick; none: not refined
	nextAt  time.Time             // of the next period
	status  string                // what the last period decided
	lacking time.Time             // when Repair first found a stage without ready replicas while another had one; zero if there is no such stage

	distances *proximity.Map // nil: to be computed
}

// Parameters of adoption beyond its own defaults, in seconds at speed 1.
const (
	holdOff    = 60
	holdOffMax = 960
	moveCost   = 5
	horizon    = 60
)

// New returns a planner without a plan.
func New(cfg Config) (*Planner, error) {
	p := &Planner{cfg: cfg}
	p.native = cfg.Policy.planner
	if p.native == nil {
		return p, nil
	}
	if cfg.Wrap != nil {
		p.native = cfg.Wrap(cfg.Model, p.native)
	}
	var err error
	p.machine, err = adoption.New(adoption.Config{
		// Replan is called once a period. The machine's own period is a little shorter,
		// so that a tick that comes slightly early does not lose one.
		Planner: p.native, Follow: cfg.Follow, Period: 0.9 * cfg.Period.Seconds(), Seen: cfg.Seen,
		HoldOff: holdOff / cfg.Speed, HoldOffMax: holdOffMax / cfg.Speed,
		MoveCost: moveCost / cfg.Speed, Horizon: horizon / cfg.Speed,
	})
	return p, err
}

// Start sets the time from which the adoption machine counts. It is called before
// every other method.
func (p *Planner) Start(now time.Time) { p.zero = now }

// Plan returns the plan in force; one without stages: none yet.
func (p *Planner) Plan() policies.Plan { return p.plan }

// Status returns the decision of the last planning period with its reason.
func (p *Planner) Status() string { return p.status }

// SetPlan puts a plan in force.
func (p *Planner) SetPlan(now time.Time, plan policies.Plan) {
	p.plan = plan
	p.cfg.Registry.RecordStages(plan)
	p.resetMeasurements()
	p.measure(now)
}

// RecordStages records the stages of the plan in force in the registry. This is needed
// when the configured replicas have changed.
func (p *Planner) RecordStages() {
	plan := p.plan
	plan.Model = p.cfg.Model
	p.cfg.Registry.RecordStages(plan)
}

// TakeOver prepares the planner of a control plane that becomes the leader: the next
// period begins now, and earlier measurements are dropped.
func (p *Planner) TakeOver(now time.Time) {
	p.nextAt, p.lacking, p.period = now.Add(p.cfg.Period), time.Time{}, registry.Period{}
	p.resetMeasurements()
}

// resetMeasurements drops the measured iteration times.
func (p *Planner) resetMeasurements() { p.window = make([]registry.Pace, len(p.plan.Stages)) }

// Tick measures the stages once.
func (p *Planner) Tick(now time.Time) {
	for i, pace := range p.cfg.Registry.Paces(now, p.plan) {
		p.window[i].Running += pace.Running
		p.window[i].Tokens += pace.Tokens
	}
	if p.cfg.Policy.paper {
		p.cfg.Registry.AddToPeriod(now, p.cfg.Model, p.cfg.Edges, &p.period)
	}
	p.measure(now)
}

// measure computes the figures about the stages that replies to reports contain.
func (p *Planner) measure(now time.Time) {
	p.held = p.cfg.Registry.MeanHeld(now, p.plan)
	p.bounds = nil
	if p.cfg.Refine && len(p.plan.Stages) > 1 {
		p.bounds = p.boundaries(now)
	}
}

// MeanHeld returns the mean of the tokens that the replicas of a stage hold, as of the
// last tick or the last plan; ok is false where it is unknown.
func (p *Planner) MeanHeld(stage int) (mean float64, ok bool) {
	if stage < 0 || stage >= len(p.held) || p.held[stage] < 0 {
		return 0, false
	}
	return p.held[stage], true
}

// iterations returns each stage's iteration time over the window, with equal weight for
// every token (Little's law); 0 where nothing ran.
func (p *Planner) iterations() []float64 {
	out := make([]float64, len(p.window))
	for i, pace := range p.window {
		if pace.Tokens > 0 {
			out[i] = pace.Running / pace.Tokens
		}
	}
	return out
}

// PeriodDue reports whether it is time for Replan.
func (p *Planner) PeriodDue(now time.Time) bool { return !now.Before(p.nextAt) }

// Result is the outcome of Replan or Refine: a change of plan, or an entry of the
// history that says why there is none, or neither.
type Result struct {
	Change *planhistory.Change
	Entry  *planhistory.Change
}

// Replan decides at the end of a planning period: it proposes the plan that the
// adoption machine adopts, or else the plan in force with the present members. With a
// pin it proposes only a return to the pinned boundaries or, if they are in force, the
// plan in force with the present members. The machine sees only the ready replicas; the
// others keep their places in the plan.
func (p *Planner) Replan(now time.Time, pin *store.Pin) Result {
	p.nextAt = now.Add(p.cfg.Period)
	if pin != nil {
		if c := p.restorePinned(now, pin); c != nil {
			return Result{Change: c}
		}
		return p.repairMembers(now)
	}
	if p.machine == nil {
		return p.repairMembers(now)
	}
	members := p.members()
	present, eligible := p.readyPlan()
	if present.Validate() != nil {
		p.status = "waiting: a stage has no ready replica" // Repair deals with it
		return Result{}
	}
	measured := p.iterations()
	d := p.machine.Step(adoption.Input{
		Now: now.Sub(p.zero).Seconds(), Plan: present, Model: p.cfg.Model, Replicas: eligible,
		Workload: p.workload(now, eligible), Iterations: measured, Proximity: p.near().Map, PackHosts: p.cfg.Policy.paper,
	})
	p.resetMeasurements()
	p.period = registry.Period{}
	p.status = describe(d)
	if d.Reason == adoption.WarmingUp {
		if c := p.remakeFirstPlan(now, present, eligible, members); c != nil {
			return Result{Change: c}
		}
	}
	p.initial = p.initial && !d.Adopt
	entry := planhistory.Change{
		Time: now, Model: p.cfg.Model, Epoch: p.plan.Epoch, Decision: planhistory.DecisionOf(d), Reason: string(d.Reason), By: p.cfg.Author,
	}
	if !math.IsInf(d.Gain, 0) {
		entry.Gain = d.Gain
	}
	entry.Predicted, entry.Observed = worstIteration(d.Present.Iterations, measured)
	if d.Adopt {
		if c := p.Propose(now, planrepair.PlaceUnready(d.Plan, p.plan, members), string(d.Reason)); c != nil {
			denied := p.Check(c.Stages)
			if entry.Decision != planhistory.Adopted || denied == nil {
				entry.Stages = c.Stages
				return Result{Change: &entry}
			}
			p.status = string(d.Reason) + ": " + denied.Error()
			entry.Decision, entry.Reason = planhistory.Denied, p.status
		}
	}
	if r := p.repairMembers(now); r.Change != nil {
		return r
	}
	if d.Reason == adoption.WaitingForPeriod {
		return Result{}
	}
	return Result{Entry: &entry}
}

// repairMembers proposes the present plan with the present members.
func (p *Planner) repairMembers(now time.Time) Result {
	return Result{Change: p.Propose(now, p.repaired(p.members()), "replicas changed")}
}

// Propose describes the replacement of the plan in force; it returns nil when the new
// plan routes like the present one.
func (p *Planner) Propose(now time.Time, plan policies.Plan, reason string) *planhistory.Change {
	if planrepair.SameRouting(plan, p.plan) || plan.Validate() != nil {
		return nil
	}
	c := planhistory.Change{Time: now, Model: p.cfg.Model, Decision: planhistory.Repaired, Reason: reason, By: p.cfg.Author, Stages: plan.Stages}
	if len(p.plan.Stages) == 0 {
		c.Decision = planhistory.Adopted // the first plan
	}
	return &c
}

// Check returns an error for stages that the site's rules deny. The first plan is
// not checked.
func (p *Planner) Check(stages []policies.Stage) error {
	if p.cfg.Check == nil || len(p.plan.Stages) == 0 {
		return nil
	}
	return p.cfg.Check(p.plan, stages)
}

// worstIteration returns the predicted and the measured iteration of the stage where
// the measured one exceeds the predicted one most; zeros where nothing was measured.
func worstIteration(predicted, measured []float64) (p, m float64) {
	most := math.Inf(-1)
	for i := range min(len(predicted), len(measured)) {
		ratio := measured[i] / predicted[i]
		if measured[i] > 0 && predicted[i] > 0 && !math.IsInf(predicted[i], 0) && ratio > most {
			p, m, most = predicted[i], measured[i], ratio
		}
	}
	return p, m
}

// describe returns the machine's decision as a text for the status.
func describe(d adoption.Decision) string {
	text := string(d.Reason)
	if d.Gain != 0 && !math.IsInf(d.Gain, 0) {
		text += ": predicted gain " + strconv.Itoa(int(math.Round(100*d.Gain))) + " %"
	}
	if d.Err != nil {
		text += ": " + d.Err.Error()
	}
	return text
}

// workload returns the input of a planner for the eligible replicas.
func (p *Planner) workload(now time.Time, eligible []policies.Replica) policies.Workload {
	w := p.workloadOf(eligible)
	w.Flow = p.cfg.Registry.Flow(now, p.cfg.Model, p.cfg.Edges)
	if p.cfg.Policy.paper {
		w.Snapshot = p.period.Batches(p.cfg.Edges, partition.InFlight(w))
	}
	return w
}

// workloadOf returns the part of a planner's input that does not depend on requests.
func (p *Planner) workloadOf(eligible []policies.Replica) policies.Workload {
	w := policies.Workload{QoE: p.cfg.QoE, Cost: p.cfg.Cost, Transfer: p.transfer(eligible), Limits: p.cfg.Limits, Replicas: len(eligible), Capacity: eligible[0].Capacity}
	for _, r := range eligible[1:] {
		// Replicas of one model are equal; where they are not, the smallest counts.
		w.Capacity.KV = min(w.Capacity.KV, r.Capacity.KV)
		w.Capacity.Batch = min(w.Capacity.Batch, r.Capacity.Batch)
		w.Capacity.TransferRate = min(w.Capacity.TransferRate, r.Capacity.TransferRate)
	}
	return w
}

// HoldOff delays new plans as a rollback of a slow plan does. It is for rollbacks that
// an operator ordered.
func (p *Planner) HoldOff(now time.Time) {
	if p.machine != nil {
		p.machine.HoldOff(now.Sub(p.zero).Seconds())
	}
}

// RestoreHold sets the hold-off to the stored one, or to none.
func (p *Planner) RestoreHold(holds []store.Hold) {
	if p.machine == nil {
		return
	}
	until, length := 0.0, 0.0
	for _, h := range holds {
		if h.Model == p.cfg.Model {
			until, length = h.Until.Sub(p.zero).Seconds(), h.For.Seconds()
		}
	}
	p.machine.RestoreHoldOff(until, length)
}

// Hold returns the hold-off to store; ok is false where there is none. A control plane
// that does not plan knows only the hold-offs that its own operators ordered.
func (p *Planner) Hold() (hold store.Hold, ok bool) {
	if p.machine == nil {
		return store.Hold{}, false
	}
	until, length := p.machine.HoldOffState()
	return store.Hold{
		Model: p.cfg.Model, Until: p.zero.Add(seconds(until)).UTC().Round(time.Second), For: seconds(length),
	}, length > 0
}

func seconds(x float64) time.Duration { return time.Duration(x * float64(time.Second)) }
