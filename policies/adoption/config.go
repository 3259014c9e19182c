package adoption

import (
	"cmp"
	"math"

	"github.com/cascadeinfer/cascade/policies"
)

// DefaultSplitGain is the share of the objective that stages must save over one stage to be created.
const DefaultSplitGain = 0.2

// Rule says which proposals of the planner replace the plan in force.
type Rule string

const (
	// ByGain adopts those that gain enough. It is the default, also written "".
	ByGain Rule = "gain"
	// IfNeeded divides a fleet only when one stage is over its limits, and merges its stages once one stage is within
	// them with headroom, whatever the stages gain by prediction: requests that are placed by price separate lengths
	// within one stage, of which the prices of plans know nothing.
	IfNeeded Rule = "if-needed"
	// Always adopts every proposal that differs from the one before, as in the paper: no
	// least gain, no charge for moves and no rollback. Only a gain that the requests of one
	// period cannot show, two standard errors of their work, is not adopted: the planner
	// would choose between equally good plans at random. Boundaries that were refined since
	// the last proposal stay while the proposal does.
	Always Rule = "always"
)

// Config configures a Machine.
type Config struct {
	// Planner proposes and prices plans. Required.
	Planner Planner
	// Adopt says which proposals replace the plan in force.
	Adopt Rule
	// Period is the time between comparisons, and the length of a measurement window, in seconds. 0
	// means 10.
	Period float64
	// Seen is how many requests must have been counted before the fleet may leave its
	// first stage. 0 means 1000.
	Seen uint64
	// Speed is how many times as fast as real time the fleet runs. 0 means 1.
	Speed float64
}

const (
	// minGain is the share of the objective that a new plan must save, and that existing
	// stages must save over one stage to be kept. DefaultSplitGain exceeds it as a hysteresis:
	// otherwise a fleet at the threshold would switch back and forth.
	minGain = 0.1
	// moveCost is the work, in seconds of one replica, that a move to another range costs:
	// prefill that its prefix cache would have saved. horizon is how long a plan is
	// expected to last, in seconds. A plan that moves m of E replicas is charged as if its objective
	// were larger by m·moveCost/(horizon·E).
	moveCost, horizon = 5, 60
	// excess is the share by which a stage's measured iterations may exceed
	// the prediction at the present flow, and windows how many consecutive periods an excess must last before the plan is
	// rolled back.
	excess, windows = 0.25, 3
	// firstHoldOff is how long a rollback holds off new plans, in seconds of the fleet's time. It doubles with every further
	// rollback, up to maxHoldOff, until a plan has lasted as long as the last hold-off. The
	// fleet may still return to one stage during it, if the plan in force is over its
	// limits and one stage is not.
	firstHoldOff, maxHoldOff = 60, 960
)

// complete fills in the defaults and reports the first bad field as a
// *policies.Violation.
func (c Config) complete() (Config, error) {
	c.Period, c.Seen, c.Speed = cmp.Or(c.Period, 10), cmp.Or(c.Seen, 1000), cmp.Or(c.Speed, 1)
	switch {
	case c.Planner == nil:
		return c, &policies.Violation{Subject: "adoption", Invariant: "Planner must be set"}
	case !(c.Period > 0) || !(c.Speed > 0) || math.IsInf(c.Period, 1) || math.IsInf(c.Speed, 1):
		return c, &policies.Violation{Subject: "adoption", Invariant: "Period and Speed must be positive and finite, or 0 for their defaults"}
	}
	return c, nil
}
