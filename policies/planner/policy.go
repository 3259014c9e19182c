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
	least   int              // replicas of a stage of a new plan; see WithStageReplicas
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

// WithStageReplicas returns the policy with at least the given number of replicas in each stage of a new plan; 0 and 1
// set no minimum. See adoption.KeepStageReplicas.
func (p Policy) WithStageReplicas(least int) Policy {
	p.least = least
	return p
}

// bound returns a planner within the bounds of new plans. It bounds the answers of modules, too.
func (p Policy) bound(native adoption.Planner, iterationRatio float64) adoption.Planner {
	if p.least > 1 {
		native = adoption.KeepStageReplicas(native, p.least)
	}
	if iterationRatio > 0 {
		native = adoption.LimitIterationRatio(native, iterationRatio)
	}
	return native
}

// WithSlack returns the policy with another slack (partition.Exact), if it has one.
func (p Policy) WithSlack(slack float64) Policy {
	if exact, ok := p.planner.(partition.Exact); ok {
		exact.Slack = slack
		p.planner = exact
	}
	return p
}
