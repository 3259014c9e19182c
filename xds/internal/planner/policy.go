package planner

import (
	"fmt"

	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/partition"
)

// Names of policies.
const (
	PolicyDefault    = "default"     // exact, priced on flows
	PolicyPaper      = "paper"       // the paper's two phases, priced on the requests of a period
	PolicyRoundRobin = "round-robin" // one stage, always
)

// Policy is how plans are made.
type Policy struct {
	planner adoption.Planner // nil: one stage
	paper   bool             // plans, adopts and assigns as the paper does
}

// PolicyNamed looks a policy up by its name: one of the constants, or the name of a
// partitioner. "" is PolicyDefault.
func PolicyNamed(name string) (Policy, error) {
	switch name {
	case "", PolicyDefault:
		name = "exact"
	case PolicyRoundRobin:
		return Policy{}, nil
	}
	found, _ := partition.ByName(name)
	planner, ok := found.(adoption.Planner)
	if !ok {
		return Policy{}, fmt.Errorf("policy %q: must be %q, %q, %q or a partitioner's name", name, PolicyDefault, PolicyPaper, PolicyRoundRobin)
	}
	return Policy{planner: planner, paper: name == PolicyPaper}, nil
}
