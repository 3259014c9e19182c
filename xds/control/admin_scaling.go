package control

import (
	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Scaling is how many replicas a model should have, for an autoscaler to follow.
type Scaling struct {
	// Desired is what cascade_desired_replicas says, Present how many replicas there are, ready or not,
	// without those that are drained, and prefill replicas.
	Desired int `json:"desired"`
	Present int `json:"present"`
	// Reason is why Desired is what it is, as a label: "unknown", "needed", "holding" or "infeasible".
	Reason string `json:"reason"`
	// Needed is how many the demand needs at this moment, absent if that is not known; Limit is what it needs
	// them for, Work how many of them would be busy all the time, and Utilisation the share of what they can
	// serve that it may be.
	Needed      int     `json:"needed,omitempty"`
	Limit       string  `json:"limit,omitempty"`
	Work        float64 `json:"work,omitempty"`
	Utilisation float64 `json:"utilisation"`
	// Growth is the demand over what is served: above 1 while requests queue up or are refused.
	Growth float64 `json:"growth,omitempty"`
	// FallsSeconds is the time until Desired falls if the demand stays as it is; absent if it does not.
	FallsSeconds float64 `json:"falls_seconds,omitempty"`
	// Stages is what each stage of the plan in force needs at this moment.
	Stages []StageScaling `json:"stages,omitempty"`
}

// StageScaling is what one stage of the plan in force needs.
type StageScaling struct {
	Name     string `json:"name"`
	Replicas int    `json:"replicas"`
	Limit    string `json:"limit"`
}

// scalingReasons are the reasons of a Scaling.
var scalingReasons = map[planner.ScaleReason]string{
	planner.ScaleUnknown: "unknown", planner.ScaleNeeded: "needed", planner.ScaleHolding: "holding", planner.ScaleNoAnswer: "infeasible",
}

// scalingOf renders a recommendation; nil before the first one.
func scalingOf(s fleet.Scaling) *Scaling {
	if s.Desired == 0 {
		return nil
	}
	out := &Scaling{Desired: s.Desired, Present: s.Present, Reason: scalingReasons[s.Reason], Needed: s.Needed, Utilisation: s.Utilisation, Growth: s.Growth, FallsSeconds: float64(s.Falls) / 1e6}
	if s.Needed > 0 {
		out.Limit, out.Work = s.Limit.String(), s.Work
	}
	for i, n := range s.Stages {
		out.Stages = append(out.Stages, StageScaling{Name: resources.StageName(i), Replicas: n.Replicas, Limit: n.Limit.String()})
	}
	return out
}
