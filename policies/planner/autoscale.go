package planner

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
)

// Defaults of a Config.
const (
	DefaultScaleUtilisation = 0.75
	DefaultScaleWindow      = 10 * 60 * policies.Second
	DefaultScaleMemory      = 45 * policies.Second

	// hysteresis is the share by which Utilisation is lower when replicas are removed. Between the two
	// nothing changes.
	hysteresis = 0.1
)

// ScalerConfig configures a Scaler.
type ScalerConfig struct {
	// Utilisation is the target ratio of the demand to what the replicas can serve within the limits, in
	// (0, 1]. 0 means DefaultScaleUtilisation.
	Utilisation float64
	// Window is for how long fewer replicas must be enough before the number falls. 0 means DefaultScaleWindow.
	Window policies.Micros
	// Memory is the time constant of the flow counters. Queues are averaged over the same time. 0 means
	// DefaultScaleMemory.
	Memory policies.Micros
}

// complete fills in the defaults and reports the first bad field as a *policies.Violation.
func (c ScalerConfig) complete() (ScalerConfig, error) {
	set := func(v *policies.Micros, otherwise policies.Micros) {
		if *v == 0 {
			*v = otherwise
		}
	}
	set(&c.Window, DefaultScaleWindow)
	set(&c.Memory, DefaultScaleMemory)
	if c.Utilisation == 0 {
		c.Utilisation = DefaultScaleUtilisation
	}
	switch {
	case !(c.Utilisation > 0 && c.Utilisation <= 1):
		return c, &policies.Violation{Subject: "autoscale", Invariant: "Utilisation must be a share in (0, 1]"}
	case c.Window < 0 || c.Memory < 0:
		return c, &policies.Violation{Subject: "autoscale", Invariant: "Window and Memory must not be negative"}
	}
	return c, nil
}

// ScaleSample is what is known of a model and its replicas at one moment.
type ScaleSample struct {
	// Workload has the flow that the stages serve, and the limits and the capacity of a replica. Its
	// Replicas are not read. Without edges nothing is known.
	Workload policies.Workload
	// Present is how many replicas there are, ready or not, without those that leave and prefill replicas.
	Present int
	// Reporting is how many of them report, and Silent how many have reported before and do not now.
	Reporting, Silent int
	// Waiting is how many requests wait for their first token, Running how many produce tokens, and Refused
	// how many were refused so far because they would have waited for too long.
	Waiting, Running int
	Refused          uint64
}

// known reports whether the sample says what the demand is.
func (s ScaleSample) known() bool {
	return len(s.Workload.Flow.Edges) > 0 && s.Reporting > 0 && s.Reporting >= s.Silent
}

// ScaleReason says why a number is recommended.
type ScaleReason string

// The reasons.
const (
	ScaleUnknown  ScaleReason = "the demand is not known yet" // the number stays
	ScaleNeeded   ScaleReason = "the demand needs them"       // the number is exact
	ScaleHolding  ScaleReason = "fewer would do, but have not for long enough"
	ScaleNoAnswer ScaleReason = "no number of replicas keeps the limits" // the number stays
)

// Recommendation is how many replicas a model should have.
type Recommendation struct {
	Desired int // at least 1
	Reason  ScaleReason
	// ScaleNeeded is how many the demand needs now, Limit what it needs them for, and Work how many of them
	// would be busy all the time. Needed is 0 where it is not known.
	Needed int
	Limit  partition.Limit
	Work   float64
	// Growth is the demand over the measured flow: above 1 while requests queue up or are refused, below 1
	// while a backlog is worked off.
	Growth float64
	// Falls is the time until Desired falls if the demand stays as it is; 0 unless Reason is ScaleHolding.
	Falls policies.Micros
}

// Scaler decides how many replicas a model should have, for an autoscaler of the
// operator's (HPA, KEDA) to follow: as few as serve the present demand within the planner's limits and
// with some room to spare.
//
// It is stepped once in a planning period with a ScaleSample, and answers with a Recommendation. The
// demand is what arrives, and not what the fleet manages to serve: the flow that replicas count, scaled
// by the requests that pile up or are refused meanwhile. The planner's model of flows then says how many
// replicas that needs (partition.Objective.Least). The number rises at once and falls only after it has
// been too high for a whole window.
//
// Invariants:
//  1. the number is at least 1, and at least what the demand needs,
//  2. it does not depend on the plan in force, nor on how many replicas there are, except before the first
//     demand is known: then it is the present number,
//  3. missing reports never lower it: it does not fall while most replicas are silent, nor within a window
//     after that or after the start, and each silent replica counts as needed,
//  4. equal samples give equal numbers: no clock, no I/O.
//
// Without invariant 2 the loop with the autoscaler would swing: more replicas make another plan, which has
// another load, which would ask for other replicas.
// It is not safe for concurrent use.
type Scaler struct {
	cfg     ScalerConfig
	desired int // 0: none yet
	backlog backlog
	window  needWindow
}

// NewScaler returns a Scaler that knows nothing. The error is a *policies.Violation.
func NewScaler(cfg ScalerConfig) (*Scaler, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	return &Scaler{cfg: cfg}, nil
}

// Utilisation returns the share of what the replicas can serve that the demand may be.
func (s *Scaler) Utilisation() float64 { return s.cfg.Utilisation }

// Step recommends a number of replicas. It is called with times that do not go back, and should be called
// at least twice in a Config.Memory: a backlog that grew over a longer time counts as its mean growth.
func (s *Scaler) Step(now policies.Micros, in ScaleSample) Recommendation {
	if !in.known() {
		if s.desired == 0 || s.window.never() {
			s.desired = max(1, in.Present)
		}
		s.backlog, s.window = backlog{}, needWindow{started: s.window.started}
		return Recommendation{Desired: s.desired, Reason: ScaleUnknown}
	}
	if s.desired == 0 {
		s.desired = max(1, in.Present)
	}
	rec := Recommendation{Growth: s.backlog.step(now, s.cfg.Memory, in)}
	up, err := Demand(in.Workload, rec.Growth, s.cfg.Utilisation)
	if err != nil {
		s.window = needWindow{started: s.window.started} // what is needed is not known: the number may not fall for a window
		rec.Desired, rec.Reason = s.desired, ScaleNoAnswer
		return rec
	}
	// Where no number is enough with more room, only more demand makes the number rise.
	down, _ := Demand(in.Workload, rec.Growth, s.cfg.Utilisation*(1-hysteresis))
	rec.Needed, rec.Limit, rec.Work = up.Replicas, up.Limit, up.Work
	enough := max(up.Replicas, down.Replicas) + in.Silent
	most, full, left := s.window.add(now, s.cfg.Window, enough)
	switch {
	case up.Replicas >= s.desired:
		s.desired = up.Replicas
	case full && most < s.desired:
		s.desired = most
	}
	rec.Desired, rec.Reason = s.desired, ScaleNeeded
	if enough < s.desired {
		rec.Reason, rec.Falls = ScaleHolding, left
	}
	return rec
}
