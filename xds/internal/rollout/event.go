package rollout

import (
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Event is what happens to a rollout: a Want, a Seen, a Refuse or a Bar.
type Event interface{ event() }

// SetTarget says that the fleet should be shown a table.
type SetTarget struct {
	Table *Table
	// Urgent skips the watch, and no gate: the plan in force has a stage that
	// nobody serves.
	Urgent bool
}

// Observe is what the groups' nodes have now, as Needs asked.
type Observe struct{ Groups map[string]Observation }

// Observation is what is known of one group.
type Observation struct {
	Serial uint64 // of the Need that this answers; another one's is ignored
	Nodes  int    // connected, and not observers
	// Acked are those of the nodes that have something of Need.Types and are
	// not late. Without one nothing is established.
	Acked int
	// Late are the ids of nodes that lack something of Need.Types, Behind of
	// those that lack anything; the latter only where the Need asks for it.
	Late, Behind map[string]bool
	// Regression says what became worse since Need.Watched; empty when nothing did.
	Regression string
	// Requests are those that still run on Need.Leaving; Known says that
	// somebody counts them.
	Requests      int
	RequestsKnown bool
}

// NACK says that a node refused a response.
type NACK struct {
	Node, Group, Type string
	Resources         []Version // of the response
	Blamed            []string  // those of them that the node blames; empty when it does not say
	Text              string    // why, fit to be shown
}

// Version is one version of a named resource.
type Version struct{ Name, Version string }

// Quarantine brings versions that other servers' nodes refused.
type Quarantine struct{ Refusals []Refusal }

func (SetTarget) event()  {}
func (Observe) event()    {}
func (NACK) event()       {}
func (Quarantine) event() {}

// Refusal is a version that a node refused, and that nobody is sent again.
type Refusal struct {
	Type, Name, Version string
	Node, Group         string
	Text                string // why, fit to be shown
	At                  time.Time
}

// Query is what a rollout wants to know of a group.
type Query struct {
	Group      string
	Serial     uint64
	Set        resources.Set // what the group is shown
	Types      []string      // Late is about these; none when nobody is waited for
	WantBehind bool
	// TrialSince is since when the group's plan is on trial; zero when it is not.
	TrialSince time.Time
	// Removed are endpoints that were removed and may have requests.
	Removed []resources.Endpoint
}

// Output is what is to be done after an event.
type Output struct {
	Applies []Apply   // at most one of each group
	Refused []Refusal // newly, by nodes of this server
	Notes   []Note
	// Wake is when the next Seen is due, if nothing happens before; zero: never.
	Wake time.Time
	// ObserveNow says that Needs changed: a Seen is due now.
	ObserveNow bool
}

// Apply says what a group is shown from now on.
type Apply struct {
	Group string
	Set   resources.Set
	Phase Phase
	Epoch policies.Epoch // of the routes
}

// Note is a transition that an operator may want to read of.
type Note struct {
	Warn        bool
	Text        string // constant
	Group, Node string
	Epoch       policies.Epoch
	Why         string
}

// Report is the state of a rollout.
type Report struct {
	Groups []GroupReport // in the order of roll-out
	// Blocked says why the newest table is not rolled out, Wanted is its epoch; ""
	// when it is, or waits for its turn.
	Blocked string
	Target  policies.Epoch
	// Rolling is the epoch that is rolled out now; 0: none.
	Rolling policies.Epoch
}

// GroupReport is the state of one group.
type GroupReport struct {
	Name  string
	Phase Phase
	Epoch policies.Epoch // of the routes that it is shown
	Set   resources.Set  // what it is shown
	Nodes int
	// Until is when its watch ends, or its endpoints are removed at the latest;
	// zero outside of those.
	Until time.Time
	// KeptRefused counts the refused versions that it is shown all the same, because
	// nothing else is known, or until it has gone back.
	KeptRefused int
	Reverting   bool              // it goes back to the plan that it had
	Fenced      map[string]string // why, by node
}
