package planrollout

import (
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Event is an input of a Rollout: SetTarget, Observe or NACK.
type Event interface{ event() }

// SetTarget requests that a snapshot be rolled out to the fleet.
type SetTarget struct {
	Snapshot *Snapshot
	// Urgent skips the watch but no acknowledgement: a stage of the plan in
	// force has no replica that takes requests.
	Urgent bool
}

// Observe reports the state of the nodes of each group, as requested by Queries.
type Observe struct{ Groups map[string]Observation }

// Observation is the state of one group's nodes.
type Observation struct {
	Serial uint64 // of the Query that it answers; one with another serial is ignored
	Nodes  int    // connected nodes that count
	// Late holds the ids of nodes that lack resources of Query.Types, and Behind
	// the ids of nodes that lack any resource. Behind is set only if
	// Query.WantBehind is set.
	Late, Behind map[string]bool
	// OthersLate says that a node which does not count is late. The group waits for such
	// nodes for one AckTimeout altogether.
	OthersLate bool
	// Regression says what got worse since Query.TrialSince; "" if nothing did.
	Regression string
	// Requests counts the requests that still run on Query.Removed. It counts
	// only if RequestsKnown.
	Requests      int
	RequestsKnown bool
}

// NACK reports that a node refused a response.
type NACK struct {
	Node, Group, Type string
	Nodes             int       // of the group, connected
	Resources         []Version // that the response held; at least one
	Text              string    // the reason, redacted
}

// Version is one version of a named resource.
type Version struct{ Name, Version string }

func (SetTarget) event() {}
func (Observe) event()   {}
func (NACK) event()      {}

// Refusal is a plan that was rolled back because a canary or half of a group refused it, in the
// JSON form of GET /status.
type Refusal struct {
	Epoch policies.Epoch `json:"epoch"` // of the newest plan of the refused snapshot
	Plans []RefusedPlan  `json:"-"`     // of the snapshot, that would have replaced others
	Type  string         `json:"type"`  // of what was refused: the last part of the type URL
	Name  string         `json:"name"`
	Node  string         `json:"node"`
	Group string         `json:"group,omitempty"`
	Text  string         `json:"text"` // the proxy's error text, redacted
	At    time.Time      `json:"at"`
}

// RefusedPlan is a model's plan in a refused snapshot.
type RefusedPlan struct {
	Model         string
	Epoch, Before policies.Epoch // Before is of the plan that stays
}

// Query asks for the state of one group's nodes.
type Query struct {
	Group      string
	Serial     uint64
	Set        resources.Set // applied to the group
	Types      []string      // the types that Late refers to; none while the group waits for no node
	WantBehind bool
	// TrialSince is when the trial of the group's plan began; zero if there is
	// none.
	TrialSince time.Time
	// Removed lists endpoints that left the plan and may still have requests.
	Removed []resources.Endpoint
}

// Output is what the caller has to do after an event.
type Output struct {
	Applies []Apply   // at most one for each group
	Refused []Refusal // newly
	Notes   []Note
	// Wake is when the next Observe is due if no event comes before; zero:
	// never.
	Wake time.Time
	// ObserveNow says that the queries have changed and an Observe is due now.
	ObserveNow bool
}

// Apply is the set that a group is sent from now on.
type Apply struct {
	Group string
	Set   resources.Set
	Phase Phase
	Epoch policies.Epoch // of the routes
}

// Note is a transition to be logged.
type Note struct {
	Warn        bool
	Text        string // constant
	Group, Node string
	Epoch       policies.Epoch
	Why         string
}

// Report is the state of a rollout.
type Report struct {
	Groups []GroupReport // in the order of the rollout
	// Blocked says why the newest snapshot is not rolled out; "" if it is, or
	// waits for its turn. Target is its epoch.
	Blocked string
	Target  policies.Epoch
	// Stopped says that the rollout in progress goes no further, because a node refuses a
	// version of it; Blocked says why.
	Stopped bool
	// Rolling is the epoch that is being rolled out; 0: none.
	Rolling policies.Epoch
}

// GroupReport is the state of one group.
type GroupReport struct {
	Name  string
	Phase Phase
	Epoch policies.Epoch // of its routes
	Set   resources.Set  // applied to it
	Nodes int
	// Until is when the group's watch ends, or when its removed endpoints are
	// dropped at the latest; zero in other phases.
	Until     time.Time
	Reverting bool              // it is reverting to its previous plan
	Fenced    map[string]string // reasons by node
	Refusing  map[string]string // by node: what it refuses of what its group has
}
