package planner

import (
	"strconv"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/partition"
)

// Names of policies.
const (
	PolicyDefault    = "default"     // partition.Exact with its default slack, priced on flows
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
	case "":
		name = PolicyDefault
	case PolicyRoundRobin:
		return Policy{}, nil
	}
	found, _ := partition.ByName(name)
	planner, ok := found.(adoption.Planner)
	if !ok {
		return Policy{}, &policies.Violation{
			Subject:   "policy " + strconv.Quote(name),
			Invariant: "must be " + strconv.Quote(PolicyDefault) + ", " + strconv.Quote(PolicyPaper) + ", " + strconv.Quote(PolicyRoundRobin) + " or a partitioner's name",
		}
	}
	return Policy{planner: planner, paper: name == PolicyPaper}, nil
}

// WithSlack returns the policy with another slack (partition.Exact), if it has one.
func (p Policy) WithSlack(slack float64) Policy {
	if exact, ok := p.planner.(partition.Exact); ok {
		exact.Slack = slack
		p.planner = exact
	}
	return p
}
