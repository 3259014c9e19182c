package promotion

import "github.com/cascadeinfer/cascade/policies"

// State is where a generation is in its life.
type State uint8

// The states.
const (
	Waiting       State = iota + 1 // offered, and another one is being built
	Verifying                      // its signatures are being checked
	Compiling                      // verified
	Warming                        // compiled
	IsWarm                         // golden vectors passed, instances are up
	InShadow                       // answers recorded frames
	InCanary                       // answers some of the calls
	IsActive                       // answers all, or all others
	IsPrevious                     // was active before, kept warm
	Rejected                       // failed at something: the reason says what
	RolledBackOut                  // an operator took it back
	Superseded                     // a newer one took its place
	Gone                           // withdrawn
)

// String names the state.
func (s State) String() string {
	names := [...]string{"unknown", "waiting", "verifying", "compiling", "warming", "warm", "shadow", "canary", "active", "previous",
		"rejected", "rolled back", "superseded", "withdrawn"}
	if int(s) >= len(names) {
		s = 0
	}
	return names[s]
}

// Life is what became of one generation.
type Life struct {
	Generation Generation
	State      State
	Since      policies.Micros // when the state, or the step of the canary, began
	Goal       Goal
	Permille   int     // of its canary
	Figures    Figures // in this stage so far
	Reason     string  // why it is not further, or not there any more
	// Held is what it has shown in shadow that speaks against it: with a goal beyond
	// shadow it would end.
	Held string
	// Doubt is what it has shown in shadow or in this step of the canary that speaks
	// against it, when that is not sure yet: it goes no further meanwhile.
	Doubt string
}

// Status is a slot at one moment. Active is 0 while the native policy decides.
type Status struct {
	Route Route
	Floor Generation // the highest generation offered: keep it across restarts
	// Lives are those of active, previous, candidate and waiting generations that
	// there are, then the ended ones, latest first.
	Lives []Life
}

// remembered bounds the ended lives that a machine can tell of. A rejected
// generation that is forgotten is below the floor, or is the floor, which is
// kept apart.
const remembered = 8
