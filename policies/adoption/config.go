package adoption

import "github.com/cascadeinfer/cascade/policies"

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
	// the last proposal stay while the proposal does. Gain, SplitGain, MoveCost, Horizon,
	// Excess and Windows have no effect then.
	Always Rule = "always"
)

// Config configures a Machine. Times are in seconds of the fleet's time: if the fleet
// runs faster than real time, the caller divides Period, HoldOff, HoldOffMax, MoveCost
// and Horizon accordingly.
type Config struct {
	// Planner proposes and prices plans. Required.
	Planner Planner
	// Adopt says which proposals replace the plan in force.
	Adopt Rule
	// Period is the time between comparisons, and the length of a measurement window. 0
	// means 10.
	Period float64
	// Seen is how many requests must have been counted before the fleet may leave its
	// first stage. 0 means 1000.
	Seen uint64
	// Gain is the share of the objective that a new plan must save, and that existing
	// stages must save over one stage to be kept. 0 means 0.1.
	Gain float64
	// SplitGain is the share that stages must save over one stage to be created. It exceeds
	// Gain as a hysteresis: otherwise a fleet at the threshold would switch back and forth.
	// 0 means DefaultSplitGain.
	SplitGain float64
	// MoveCost is the work, in seconds of one replica, that a move to another range costs:
	// prefill that its prefix cache would have saved. Horizon is how long a plan is
	// expected to last. A plan that moves m of E replicas is charged as if its objective
	// were larger by m·MoveCost/(Horizon·E). 0 means 5 and 60.
	MoveCost, Horizon float64
	// Excess is the share by which a stage's measured iterations may exceed
	// the prediction at the present flow. 0 means 0.25.
	Excess float64
	// Windows is how many consecutive periods an excess must last before the plan is rolled
	// back. 0 means 3.
	Windows int
	// HoldOff is how long a rollback holds off new plans. It doubles with every further
	// rollback, up to HoldOffMax, until a plan has lasted as long as the last hold-off. The
	// fleet may still return to one stage during it, if the plan in force is over its
	// limits and one stage is not. 0 means 60 and 960.
	HoldOff, HoldOffMax float64
}

// complete fills in the defaults and reports the first bad field as a
// *policies.Violation.
func (c Config) complete() (Config, error) {
	if c.Planner == nil {
		return c, &policies.Violation{Subject: "adoption", Invariant: "Planner must be set"}
	}
	for _, f := range [...]struct {
		name      string
		value     *float64
		otherwise float64
	}{
		{"Period", &c.Period, 10}, {"Gain", &c.Gain, 0.1}, {"SplitGain", &c.SplitGain, DefaultSplitGain},
		{"MoveCost", &c.MoveCost, 5}, {"Horizon", &c.Horizon, 60}, {"Excess", &c.Excess, 0.25},
		{"HoldOff", &c.HoldOff, 60}, {"HoldOffMax", &c.HoldOffMax, 960},
	} {
		if *f.value == 0 {
			*f.value = f.otherwise
		}
		if !(*f.value > 0) || *f.value-*f.value != 0 {
			return c, &policies.Violation{Subject: "adoption", Invariant: f.name + " must be positive and finite, or 0 for its default"}
		}
	}
	if c.Seen == 0 {
		c.Seen = 1000
	}
	if c.Windows == 0 {
		c.Windows = 3
	}
	switch {
	case c.Windows < 0:
		return c, &policies.Violation{Subject: "adoption", Invariant: "Windows must be positive, or 0 for its default"}
	case c.SplitGain >= 1 || c.SplitGain < c.Gain:
		return c, &policies.Violation{Subject: "adoption", Invariant: "Gain and SplitGain must be shares below 1, SplitGain not below Gain"}
	case c.HoldOffMax < c.HoldOff:
		return c, &policies.Violation{Subject: "adoption", Invariant: "HoldOffMax must not be below HoldOff"}
	}
	return c, nil
}
