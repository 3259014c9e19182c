package promotion

import "github.com/cascadeinfer/cascade/policies"

// Goal is how far an offered generation may go.
type Goal uint8

// The goals, in order.
const (
	ToWarm   Goal = iota + 1 // loaded, and no more
	ToShadow                 // and tried on recorded frames
	ToCanary                 // and on a share of the calls, or a scope
	ToActive                 // and on all
)

// String names the goal.
func (g Goal) String() string {
	switch g {
	case ToWarm:
		return "warm"
	case ToShadow:
		return "shadow"
	case ToCanary:
		return "canary"
	case ToActive:
		return "active"
	}
	return "unknown"
}

// Offer is a generation that may come to decide. The same generation may be
// offered again, with another goal; everything else is as at first.
type Offer struct {
	Generation Generation
	Goal       Goal
	// Permille is the largest share of the canary, for ToCanary in a kind that
	// decides for one request: 1 to 999.
	Permille int
	// Scope is the canary's, in kinds that decide for many. Required there for
	// ToCanary and ToActive, unless Proven.
	Scope string
	// Proven skips the gates: the fleet runs it.
	Proven bool
	// Until is when an offer that is not Proven ends: what has not been promoted by
	// then is rejected. 0 means no end.
	Until policies.Micros
	// Back says that the host admitted it before, and is to go back to it: it may be
	// below the floor. Whoever offers it knows that it did not fail.
	Back bool
}

// Figures are counts since a stage began.
type Figures struct {
	Calls    uint64 // answered
	Faults   uint64 // of those trapped, out of fuel, or with an answer that breaks a rule
	Differ   uint64 // answered otherwise than the active generation does
	Worse    uint64 // worse, by the host's own measure
	Compared uint64 // calls that Differ and Worse are of: those that the active generation answered, too
}

// EventKind says what happened.
type EventKind uint8

// The events.
const (
	Offered    EventKind = iota + 1 // Offer
	Verified                        // Generation: the bytes are what was signed
	Compiled                        // Generation: it is loaded
	Warmed                          // Generation: golden vectors passed, instances are up
	Failed                          // Generation, Reason: a step of building failed for good
	Observed                        // Generation, Figures: what it showed in its stage so far
	Faulted                         // Generation: one call was not answered by it
	Withdrawn                       // Generation: nobody wants the candidate any more
	RolledBack                      // Generation, Reason: an operator takes it back
	Ticked                          // time went on
)

// Event is something that happened. Now never goes back; an earlier one counts
// as the last. A word on a generation that is not in the place which the event
// is about changes nothing: events may come late.
type Event struct {
	Kind       EventKind
	Now        policies.Micros
	Generation Generation
	Offer      Offer
	Figures    Figures
	Reason     string
}

// ActionKind says what is to be done.
type ActionKind uint8

// The actions.
const (
	Verify  ActionKind = iota + 1 // Generation: answer with Verified or Failed
	Compile                       // Generation: answer with Compiled or Failed
	Warm                          // Generation: answer with Warmed or Failed
	Cancel                        // Generation: what is being built is wanted no more; answer soon, however
	Shadow                        // Generation: replay recorded frames on it; 0: on none
	Switch                        // Route: put it in force, at once
	Close                         // Generation: free it when its last call has returned
)

// String names the action.
func (k ActionKind) String() string {
	names := [...]string{"?", "verify", "compile", "warm", "cancel", "shadow", "switch", "close"}
	if int(k) >= len(names) {
		k = 0
	}
	return names[k]
}

// Action is what is to be done. Actions are to be begun in their order.
type Action struct {
	Kind       ActionKind
	Generation Generation
	Route      Route
}
