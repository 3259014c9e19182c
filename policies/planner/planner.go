// Package planner makes the plans of one model: it proposes the first plan, repairs a
// plan whose stages lose their ready replicas (Repair), plans anew every period
// (Replan), moves boundaries to where the replicas propose them (Refine), and works out
// which plan an operator's pin or rollback leads to (Revive).
//
// A Planner gets the replicas and their reports as a View and only decides: its
// owner stores each Change that it proposes and calls SetPlan when that is done. It reads no
// clock, does no I/O and is not safe for concurrent use.
//
// The control plane's owner is xds/fleet. In virtual time, the owner calls Repair at the start
// and when a replica joins, leaves or fails, Tick four times a second, Replan when PeriodDue,
// and Refine once a second if Config.Refine. It puts every Change with stages in force by
// SetPlan, under the next epoch, with the replicas' stages updated in the View. An owner that must
// not wait calls Repair, Replan and Refine in a Task.
//
// Invariant: a proposed plan is valid and routes differently from the one in force. The
// site's rules are asked about plans that Replan adopts for a gain and boundaries that
// Refine moves; repairs, rollbacks and returns to a pinned plan are proposed even if the
// rules would deny them.
package planner

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/policies/partition"
)

// Config is the configuration of a Planner. All fields but IterationRatio, Check and
// Wrap are required.
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

	Policy Policy
	Refine bool // the replicas move boundaries between two planning periods
	// Adopt says which proposals replace the plan in force.
	Adopt adoption.Rule
	// IterationRatio bounds what stages cost the longest requests; see adoption.LimitIterationRatio. 0: nothing does.
	IterationRatio float64
	Speed          float64
	Period         policies.Micros
	// Grace is how long a stage may be without a ready replica while most replicas
	// are missing.
	Grace policies.Micros
	Seen  uint64 // requests counted before the fleet leaves its first plan
	// History is the workload that the first plan is made for: its Flow, with these Edges,
	// and its Snapshot. Without edges the first plan is one stage.
	History policies.Workload
	// Check returns an error if the site's rules deny next, whose epoch is that of before plus one;
	// nil denies nothing.
	Check func(before, next policies.Plan) error
	// Wrap returns the planner to use in place of the native one; nil: the native one.
	Wrap func(model string, native adoption.Planner) adoption.Planner
}

// Planner decides about one model's plan.
type Planner struct {
	cfg     Config
	machine *adoption.Machine // nil: one stage, always
	native  adoption.Planner  // of the machine

	plan    policies.Plan           // in force; no stages: none yet
	initial bool                    // plan is the first one, or a repair of it
	window  []Pace                  // per stage: the sum of the ticks' paces since the last reset
	period  Period                  // the requests since the last planning period; only for the paper's policy
	held    []float64               // mean held tokens per stage, as of the last tick; -1: unknown
	bounds  []partition.Boundary    // between the stages, as of the last tick; none: not refined
	ticks   int                     // since the start
	ranges  []policies.PrefillRange // as of the last division
	begun   bool                    // a first period has begun
	nextAt  policies.Micros         // of the next period, if begun
	status  string                  // what the last period decided
	last    policies.Workload       // of the last period; no edges: there was none
	reasons []partition.StageReason // of the stages of plan, under last; nil: unknown
	lacks   bool                    // Repair has found a stage without ready replicas while another had one
	lacking policies.Micros         // since when, if lacks

	changes   int            // counts what makes a Task out of date; see Finish
	distances *links.CostMap // nil: to be computed
}

// Defaults of the fleets that plan, for the owner of a Planner, at speed 1.
const (
	DefaultPeriod   = 10 * policies.Second
	DefaultHalfLife = 30 * policies.Second // View.HalfLife
	// DefaultGrace is Config.Grace and View.Grace, at any speed: with the tick that finds a silent replica, and an
	// operator's look at the status, it is named within 5 s of its last report.
	DefaultGrace = 4500 * policies.Millisecond
	DefaultSeen  = 1000
	// BucketsPerOctave is the number of length buckets per doubling; see policies.BucketEdges.
	BucketsPerOctave = 4
	// RefineInterval is the least time between two changes of boundaries: each costs a
	// synced file and a route table for every proxy.
	RefineInterval = policies.Second
	// DefaultIterationRatio is Config.IterationRatio of production; RATIONALE says where it comes from.
	DefaultIterationRatio = 1.5
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
	p.native = cfg.Policy.bound(p.native, cfg.IterationRatio)
	var err error
	p.machine, err = adoption.New(adoption.Config{
		// Replan is called once a period. The machine's own period is a little shorter,
		// so that a tick that comes slightly early does not lose one.
		Planner: p.native, Adopt: cfg.Adopt, Period: 0.9 * seconds(cfg.Period), Seen: cfg.Seen,
		Speed: cfg.Speed,
	})
	return p, err
}

// Plan returns the plan in force; one without stages: none yet.
func (p *Planner) Plan() policies.Plan { return p.plan }

// Status returns the decision of the last planning period with its reason.
func (p *Planner) Status() string { return p.status }

// SetPlan puts a plan in force. The view has the stages of that plan.
func (p *Planner) SetPlan(v *View, plan policies.Plan) {
	if len(plan.Stages) != len(p.plan.Stages) || !slices.Equal(plan.Cuts(), p.plan.Cuts()) {
		p.changes++
	}
	p.plan = plan
	p.resetMeasurements()
	p.measure(v)
	p.explain()
}

// Reasons returns why the plan in force has its stages, in their order: at the flow of the last
// period and by the native planner's prices, in which every migration costs the same. It returns
// nil before the first period, and if a stage is over its limits.
func (p *Planner) Reasons() []partition.StageReason { return p.reasons }

// Workload returns the workload of the last planning period, which must not be changed; without
// edges there was none yet.
func (p *Planner) Workload() policies.Workload { return p.last }

// explain computes the reasons of the stages.
func (p *Planner) explain() {
	p.reasons = nil
	if len(p.last.Flow.Edges) == 0 || len(p.plan.Stages) == 0 {
		return
	}
	counts := make([]int, len(p.plan.Stages))
	for i, st := range p.plan.Stages {
		counts[i] = len(st.Replicas)
	}
	reasons, err := partition.Explain(p.cfg.Policy.planner, p.last, p.plan.Cuts(), counts)
	if err == nil { // else the status of the period says why
		p.reasons = reasons
	}
}

// TakeOver prepares the planner of a control plane that becomes the leader: the next
// period begins now, and earlier measurements are dropped.
func (p *Planner) TakeOver(now policies.Micros) {
	p.begun, p.nextAt, p.lacks, p.period = true, now+p.cfg.Period, false, Period{}
	p.changes++
	p.resetMeasurements()
}

// Resign drops what was planned, when the control plane is the leader no longer: another one decides from then on.
func (p *Planner) Resign() {
	p.status, p.last, p.reasons = "", policies.Workload{}, nil
	p.changes++
}

// resetMeasurements drops the measured iteration times.
func (p *Planner) resetMeasurements() { p.window = make([]Pace, len(p.plan.Stages)) }

// Tick measures the stages once.
func (p *Planner) Tick(v *View) {
	for i, pace := range v.Paces(p.plan) {
		p.window[i].Running += pace.Running
		p.window[i].Tokens += pace.Tokens
	}
	if p.cfg.Policy.paper {
		v.AddToPeriod(p.cfg.Edges, &p.period)
	}
	p.measure(v)
	if p.ticks%ticksPerDivision == 0 {
		p.ranges = p.dividePrefill(v)
	}
	p.ticks++
}

// measure computes the figures about the stages that replies to reports contain.
func (p *Planner) measure(v *View) {
	p.held = v.MeanHeld(p.plan)
	p.bounds = nil
	if p.cfg.Refine && len(p.plan.Stages) > 1 {
		p.bounds = v.Boundaries(p.plan, p.cfg.Edges)
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
func (p *Planner) PeriodDue(now policies.Micros) bool { return !p.begun || now >= p.nextAt }

// Result is the outcome of Replan or Refine: a change of plan, or an entry of the
// history that says why there is none, or neither.
type Result struct {
	Change *Change
	Entry  *Change
}

// Replan decides at the end of a planning period: it proposes the plan that the
// adoption machine adopts, or else the plan in force with the present members. With a
// pin it proposes only a return to the pinned boundaries or, if they are in force, the
// plan in force with the present members. The machine sees only the ready replicas; the
// others keep their places in the plan.
func (p *Planner) Replan(now policies.Micros, v *View, pin *Pin) Result {
	p.begun, p.nextAt = true, now+p.cfg.Period
	if pin != nil {
		if c := p.restorePinned(v, *pin); c != nil {
			return Result{Change: c}
		}
		return p.repairMembers(v)
	}
	if p.machine == nil {
		return p.repairMembers(v)
	}
	members := listMembers(v)
	present, eligible := p.readyPlan(v)
	if present.Validate() != nil {
		p.status = "waiting: a stage has no ready replica" // Repair deals with it
		return Result{}
	}
	measured, workload := p.iterations(), p.workload(v, eligible)
	d := p.machine.Step(adoption.Input{
		Now: seconds(now), Plan: present, Model: p.cfg.Model, Replicas: eligible,
		Workload: workload, Iterations: measured, Proximity: p.near(v).Map, PackHosts: p.cfg.Policy.paper,
	})
	p.last = workload
	p.explain()
	p.resetMeasurements()
	p.period = Period{}
	p.status = describe(d) + p.describePrefill(v, workload)
	if d.Reason == adoption.WarmingUp {
		if c := p.remakeFirstPlan(v, present, eligible, members); c != nil {
			return Result{Change: c}
		}
	}
	p.initial = p.initial && !d.Adopt
	entry := Change{Model: p.cfg.Model, Epoch: p.plan.Epoch, Decision: decisionOf(d), Reason: string(d.Reason)}
	if !math.IsInf(d.Gain, 0) {
		entry.Gain = d.Gain
	}
	entry.Predicted, entry.Observed = worstIteration(d.Present.Iterations, measured)
	if d.Adopt {
		if c := p.Propose(PlaceUnready(d.Plan, p.plan, members), string(d.Reason)); c != nil {
			denied := p.Check(c.Stages)
			if entry.Decision != Adopted || denied == nil {
				entry.Stages = c.Stages
				return Result{Change: &entry}
			}
			p.status = string(d.Reason) + ": " + denied.Error()
			entry.Decision, entry.Reason = Denied, p.status
		}
	}
	if r := p.repairMembers(v); r.Change != nil {
		return r
	}
	if d.Reason == adoption.WaitingForPeriod {
		return Result{}
	}
	return Result{Entry: &entry}
}

// repairMembers proposes the present plan with the present members.
func (p *Planner) repairMembers(v *View) Result {
	return Result{Change: p.Propose(p.repaired(v, listMembers(v)), "replicas changed")}
}

// Propose describes the replacement of the plan in force; it returns nil when the new
// plan routes like the present one.
func (p *Planner) Propose(plan policies.Plan, reason string) *Change {
	if SameRouting(plan, p.plan) || plan.Validate() != nil {
		return nil
	}
	c := Change{Model: p.cfg.Model, Decision: Repaired, Reason: reason, Stages: plan.Stages}
	if len(p.plan.Stages) == 0 {
		c.Decision = Adopted // the first plan
	}
	return &c
}

// Check returns an error for stages that the site's rules deny. The first plan is
// not checked.
func (p *Planner) Check(stages []policies.Stage) error {
	if p.cfg.Check == nil || len(p.plan.Stages) == 0 {
		return nil
	}
	return p.cfg.Check(p.plan, policies.Plan{Model: p.plan.Model, Epoch: p.plan.Epoch + 1, Stages: stages})
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

// ticksPerDivision is how many ticks there are for each division of the prefill replicas. It takes
// a millisecond or two, and nothing depends on it being new.
const ticksPerDivision = 8

// PrefillRanges returns which prompts each ready prefill replica is meant for, in the order of
// their ids; nil if all are meant for all prompts. It must not be changed.
func (p *Planner) PrefillRanges() []policies.PrefillRange { return p.ranges }

// dividePrefill divides the ready prefill replicas among the prompts.
func (p *Planner) dividePrefill(v *View) []policies.PrefillRange {
	var out []policies.PrefillRange
	for i := range v.Replicas {
		if r := &v.Replicas[i]; r.Prefill && r.Ready {
			out = append(out, policies.PrefillRange{Replica: r.ID})
		}
	}
	if len(out) < 2 || p.cfg.Policy.paper {
		return nil
	}
	ranges := DividePrefill(v.PrefillFlow(p.cfg.Edges), p.cfg.Cost, len(out))
	if len(ranges) == 1 {
		return nil
	}
	slices.SortFunc(out, func(a, b policies.PrefillRange) int { return strings.Compare(string(a.Replica), string(b.Replica)) })
	at := 0
	for _, x := range ranges {
		for range x.Replicas {
			out[at].Low, out[at].High = x.Low, x.High
			at++
		}
	}
	return out
}

// describePrefill returns what the present prefill replicas save, for the status; "" if there
// are none. w is the workload of the stages.
func (p *Planner) describePrefill(v *View, w policies.Workload) string {
	k := 0
	for i := range v.Replicas {
		if r := &v.Replicas[i]; r.Prefill && r.Ready {
			k++
		}
	}
	if k == 0 {
		return ""
	}
	w.Flow, w.Replicas = v.Flow(p.cfg.Edges), w.Replicas+k
	stages, w := p.cfg.Policy.ofFlows(w, p.cfg.IterationRatio)
	gain, ok := PrefillGain(stages, w, k)
	if !ok {
		return ""
	}
	return "; prefill replicas: " + strconv.Itoa(k) + " of " + strconv.Itoa(w.Replicas) + ", predicted gain " + strconv.Itoa(int(math.Round(100*gain))) + " %"
}

// workload returns the input of a planner for the eligible replicas.
func (p *Planner) workload(v *View, eligible []policies.Replica) policies.Workload {
	w := p.workloadOf(v, eligible)
	w.Flow = v.StageFlow(p.cfg.Edges)
	if p.cfg.Policy.paper {
		w.Snapshot = p.period.Batches(p.cfg.Edges, partition.InFlight(w))
	}
	return w
}

// workloadOf returns the part of a planner's input that does not depend on requests.
func (p *Planner) workloadOf(v *View, eligible []policies.Replica) policies.Workload {
	w := policies.Workload{QoE: p.cfg.QoE, Cost: p.cfg.Cost, Transfer: p.transfer(v, eligible), Limits: p.cfg.Limits, Replicas: len(eligible), Capacity: eligible[0].Capacity}
	for _, r := range eligible[1:] {
		// Replicas of one model are equal; where they are not, the smallest counts.
		w.Capacity.KV = min(w.Capacity.KV, r.Capacity.KV)
		w.Capacity.Batch = min(w.Capacity.Batch, r.Capacity.Batch)
		// 0 is a rate that is not known, and no rate.
		if rate := r.Capacity.TransferRate; rate > 0 && (w.Capacity.TransferRate == 0 || rate < w.Capacity.TransferRate) {
			w.Capacity.TransferRate = rate
		}
	}
	return w
}

// HoldOff delays new plans as a rollback of a slow plan does. It is for rollbacks that
// an operator ordered.
func (p *Planner) HoldOff(now policies.Micros) {
	if p.machine != nil {
		p.machine.HoldOff(seconds(now))
		p.changes++
	}
}

// RestoreHold sets the hold-off to one that Hold returned, of this or another planner of the
// model; a length of 0 resets it.
func (p *Planner) RestoreHold(until, length policies.Micros) {
	if p.machine == nil {
		return
	}
	wasUntil, wasLength := p.machine.HoldOffState()
	p.machine.RestoreHoldOff(seconds(until), seconds(length))
	if isUntil, isLength := p.machine.HoldOffState(); isUntil != wasUntil || isLength != wasLength {
		p.changes++
	}
}

// Hold returns the end of the last hold-off, which may have passed, and its length; ok is
// false where there is none. A planner that is not asked to plan knows only the hold-offs
// that operators ordered.
func (p *Planner) Hold() (until, length policies.Micros, ok bool) {
	if p.machine == nil {
		return 0, 0, false
	}
	end, whole := p.machine.HoldOffState()
	return micros(end), micros(whole), whole > 0
}

func seconds(t policies.Micros) float64 { return float64(t) / float64(policies.Second) }

func micros(seconds float64) policies.Micros {
	return policies.Micros(math.Round(float64(seconds * float64(policies.Second))))
}
