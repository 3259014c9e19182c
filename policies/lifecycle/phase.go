package lifecycle

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

// Goal is how far a module may go on every host.
type Goal uint8

// The goals, in order. ToStable is for the control plane alone: it makes a
// candidate the stable generation without asking any gate.
const (
	ToWarm   Goal = iota + 1 // loaded, and no more
	ToShadow                 // and tried on recorded calls
	ToCanary                 // and on a share of the calls, or in one scope
	ToActive                 // and on all calls
	ToStable                 // active at once
)

var goals = [...]string{"", "warm", "shadow", "canary", "active", "stable"}

// GoalNames returns the names of the goals, in order.
func GoalNames() []string { return slices.Clone(goals[1:]) }

// String returns the goal's name, "" for the zero Goal.
func (g Goal) String() string {
	if int(g) >= len(goals) {
		return "unknown"
	}
	return goals[g]
}

// ParseGoal returns the goal with the name.
func ParseGoal(name string) (Goal, error) {
	if i := slices.Index(goals[:], name); i > 0 {
		return Goal(i), nil
	}
	return 0, errors.New("goal " + strconv.Quote(clip(name)) + ": must be one of " + strings.Join(goals[1:], ", "))
}

// MarshalText returns the goal's name.
func (g Goal) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (g *Goal) UnmarshalText(text []byte) (err error) {
	if len(text) == 0 {
		*g = 0
		return nil
	}
	*g, err = ParseGoal(string(text))
	return err
}

// CheckGoal returns why a module of a kind cannot have the goal with that share
// of a canary, in ‰, and that scope; nil when it can. The error begins with the
// name of the wrong parameter.
func CheckGoal(k Kind, g Goal, permille int, scope string) error {
	switch {
	case g < ToWarm || g > ToStable:
		return errors.New("goal " + strconv.Quote(g.String()) + ": must be one of " + strings.Join(goals[1:], ", "))
	case permille < 0 || permille >= Permilles:
		return errors.New("permille " + strconv.Itoa(permille) + ": must be from 1 to 999; the goal active is for all requests")
	case k.PerRequest() && scope != "":
		return errors.New("scope: " + string(k) + " decides for one request: give the share of a canary in permille")
	case k.PerRequest() && g == ToCanary && permille == 0:
		return errors.New("permille: give the share of the canary, 1 to 999")
	case !k.PerRequest() && permille != 0:
		return errors.New("permille: " + string(k) + " decides for many requests: give the scope of a canary")
	case !k.PerRequest() && scope == "" && (g == ToCanary || g == ToActive):
		return errors.New("scope: name the one that tries it first: a model, or for refine a host")
	}
	return nil
}

// Phase is where a generation is on one host.
type Phase uint8

// The phases, in the order in which a generation goes through them. Those from
// Rejected on are final.
const (
	Fetching   Phase = iota + 1 // the module's bytes are being fetched
	Waiting                     // offered; another generation is being built
	Verifying                   // its signatures are being checked
	Compiling                   // verified
	Warming                     // compiled
	Warm                        // golden vectors passed, instances are up
	Shadow                      // answers recorded calls
	Canary                      // answers some of the calls
	Active                      // answers all calls, or all others
	Previous                    // was active before, is kept warm
	Rejected                    // failed: the reason says at what
	RolledBack                  // rolled back by an operator
	Superseded                  // a newer generation took its place
	Withdrawn                   // no longer part of the desired state
)

var phases = [...]string{"", "fetching", "waiting", "verifying", "compiling", "warming", "warm", "shadow", "canary", "active", "previous",
	"rejected", "rolledBack", "superseded", "withdrawn"}

// String returns the phase's name, "" for the zero Phase.
func (p Phase) String() string {
	if int(p) >= len(phases) {
		return "unknown"
	}
	return phases[p]
}

// ParsePhase returns the phase with the name, 0 for an unknown one: a report of
// a newer host may have phases that this version does not know.
func ParsePhase(name string) Phase { return Phase(max(0, slices.Index(phases[:], name))) }

// Ended reports whether the phase is final.
func (p Phase) Ended() bool { return p >= Rejected }

// MarshalText returns the phase's name.
func (p Phase) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is the inverse of MarshalText; unknown names become 0.
func (p *Phase) UnmarshalText(text []byte) error {
	*p = ParsePhase(string(text))
	return nil
}

// clip shortens a text that an error quotes.
func clip(s string) string { return s[:min(len(s), 40)] }
