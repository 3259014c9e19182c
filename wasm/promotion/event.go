package promotion

import (
	"fmt"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

// Offer is a generation that may come to decide. The same generation may be
// offered again with another goal; everything else stays as in the first offer.
type Offer struct {
	Generation lifecycle.Generation
	Goal       lifecycle.Goal
	// Permille is the largest share of the canary, for ToCanary in a kind that
	// decides for one request: 1 to 999.
	Permille int
	// Scope is the canary's, in kinds that decide for many requests. Required there
	// for ToCanary and ToActive, unless Stable.
	Scope string
	// Stable skips the gates: the fleet runs this generation.
	Stable bool
	// Until is when an offer that is not Stable expires: a generation that is not
	// active by then is rejected. 0 means never.
	Until policies.Micros
}

// Check returns what is wrong with an offer to a slot of a kind, regardless of
// the slot's state.
func (o Offer) Check(k lifecycle.Kind) error {
	switch {
	case o.Generation == lifecycle.Native:
		return fmt.Errorf("generation 0 is the native policy: signed statements count from 1")
	case o.Goal > lifecycle.ToActive:
		return fmt.Errorf("goal %s: must be warm, shadow, canary or active", o.Goal)
	case o.Stable && o.Goal == lifecycle.ToActive:
		return nil // it has no canary
	}
	return lifecycle.CheckGoal(k, o.Goal, o.Permille, o.Scope)
}

// EventKind says what happened.
type EventKind uint8

// The events.
const (
	Offered    EventKind = iota + 1 // Offer
	Verified                        // Generation: the bytes are those that were signed
	Compiled                        // Generation: it is loaded
	Warmed                          // Generation: golden vectors passed, instances are up
	Failed                          // Generation, Reason: a build step failed for good
	Observed                        // Generation, Figures: what it has shown in its phase so far
	Faulted                         // Generation: it did not answer one call
	Withdrawn                       // Generation: the candidate is no longer wanted
	RolledBack                      // Generation, Reason: an operator takes it back
	Ticked                          // time has passed
)

// Event is something that happened. Now, in microseconds since 1970, never goes
// back; an earlier one counts as the last. An event about a generation that is not
// in the phase which the event is about changes nothing: events may come late.
type Event struct {
	Kind       EventKind
	Now        policies.Micros
	Generation lifecycle.Generation
	Offer      Offer
	Figures    lifecycle.Figures
	Reason     string
}

// ActionKind says what to do.
type ActionKind uint8

// The actions.
const (
	Verify  ActionKind = iota + 1 // Generation: reply with Verified or Failed
	Compile                       // Generation: reply with Compiled or Failed
	Warm                          // Generation: reply with Warmed or Failed
	Cancel                        // Generation: stop building it, and reply soon, in any way
	Shadow                        // Generation: replay recorded calls on it; 0: on none
	Switch                        // Route: put it in force at once
	Close                         // Generation: free it when its last call has returned
)

// String returns the action's name.
func (k ActionKind) String() string {
	names := [...]string{"?", "verify", "compile", "warm", "cancel", "shadow", "switch", "close"}
	if int(k) >= len(names) {
		k = 0
	}
	return names[k]
}

// Action is something to do. Actions are begun in their order.
type Action struct {
	Kind       ActionKind
	Generation lifecycle.Generation
	Route      Route
}
