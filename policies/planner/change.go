package planner

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
)

// Decisions about a plan; see Change.Decision.
const (
	Adopted    = "adopted"     // a plan for its gain, or the first one
	RolledBack = "rolled back" // to an earlier plan
	Repaired   = "repaired"    // other replicas serve; boundaries stay where they can
	Refined    = "refined"     // boundaries alone, as the replicas propose
	Kept       = "kept"        // the plan in force stays
	HeldOff    = "held off"    // it stays, because another one was rolled back recently
	Denied     = "denied"      // it stays, because the site's rules deny another one
)

// Change is a decision about a model's plan: it is to be replaced, or another one was
// considered and the plan is kept.
type Change struct {
	Model string
	// Epoch is that of the plan in force after it. The owner sets it when it stores the plan.
	Epoch    policies.Epoch
	Decision string           // one of the constants above, or of the owner's
	Reason   string           // what happened, in a few words
	Stages   []policies.Stage // what is to come into force; nil if the plan is kept
	// Gain is the predicted gain over the previous plan, as a share of its cost; 0
	// where nothing was compared.
	Gain float64
	// Predicted and Observed are the seconds of an iteration, at the flow of that time,
	// in the stage where the two differed most; 0 where nothing was measured.
	Predicted, Observed float64
}

// decisionOf names the decision of an adoption machine.
func decisionOf(d adoption.Decision) string {
	switch {
	case d.Reason == adoption.RolledBack:
		return RolledBack
	case d.Adopt && d.Reason == adoption.ReplicasChanged:
		return Repaired
	case d.Adopt:
		return Adopted
	case d.Reason == adoption.HeldOff:
		return HeldOff
	}
	return Kept
}
