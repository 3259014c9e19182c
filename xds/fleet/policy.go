package fleet

import (
	"fmt"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/partition"
)

// Names of Rules.Policy.
const (
	PolicyDefault    = "default"     // exact, priced on flows
	PolicyPaper      = "paper"       // the paper's two phases, priced on snapshots
	PolicyRoundRobin = "round-robin" // one stage, always
)

// Values of Rules.Refine.
const (
	RefineOn  = "on"
	RefineOff = "off"
)

// policy is what a policy name means.
type policy struct {
	planner  adoption.Planner // nil: one stage
	snapshot bool             // plans on in-flight snapshots
}

// denied says what Rules.Check has against a plan of these stages.
func (s *State) denied(m *model, stages []policies.Stage) error {
	if s.rules.Check == nil || len(m.plan.Stages) == 0 {
		return nil
	}
	return s.rules.Check(m.plan, policies.Plan{Model: m.Name, Epoch: s.epoch + 1, Stages: stages})
}

// policyOf looks a policy up by its name.
func policyOf(name string) (policy, error) {
	switch name {
	case "", PolicyDefault:
		name = "exact"
	case PolicyRoundRobin:
		return policy{}, nil
	}
	found, _ := partition.ByName(name)
	planner, ok := found.(adoption.Planner)
	if !ok {
		return policy{}, fmt.Errorf("policy %q: want %q, %q, %q or a partitioner's name", name, PolicyDefault, PolicyPaper, PolicyRoundRobin)
	}
	return policy{planner: planner, snapshot: name == PolicyPaper}, nil
}
