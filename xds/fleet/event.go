package fleet

import (
	"net/netip"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Event is an input of a State: one of Tick, Replicas, Reported, ProxiesReported,
// StreamClosed, Ordered, Planned, Stored, Vanished and NotStored.
type Event interface{ event() }

// Tick says that time has passed.
type Tick struct{}

// Replicas is the whole configured list. Replicas that are missing from it leave, new
// ones join, and a changed Draining mark starts or ends a drain. The list must have
// passed CheckReplicas.
type Replicas struct{ List []policies.Replica }

// Reported is a report of a configured replica.
type Reported struct{ Report loadreport.Report }

// ProxiesReported is what all proxies together report of the replicas, by address; see
// Proxies. It comes at most once a second.
type ProxiesReported struct {
	Loads map[netip.AddrPort]balance.ProxyReport
}

// StreamClosed says that a replica's report stream has ended. The replica becomes
// unready only when no report comes for the grace: streams break for reasons that do
// not concern requests.
type StreamClosed struct{ Replica policies.ReplicaID }

// Ordered is an operator's order. Orders that State.CheckOrder refuses change nothing. Allowed is the plan that the
// site's rules allow for it; see fleetstate.Unchecked.
type Ordered struct {
	Order   fleetstate.Order
	Allowed policies.Plan
}

// Planned says that the present Planning has run.
type Planned struct{}

// Stored is the content of the plan store: the answer to a proposal, what a restart
// finds, or what another control plane wrote. Its plans come into force, unless they
// are older than those in force or differ from them under the same epoch: those are
// proposed again. Its drains come into force in any case.
type Stored struct{ Object store.Object }

// Vanished says that the store, which had an object, is empty: the object in force is to
// be stored again.
type Vanished struct{}

// NotStored says that the present proposal was not stored. The State keeps its plans
// and proposes again later.
type NotStored struct{}

func (Tick) event()            {}
func (Replicas) event()        {}
func (Reported) event()        {}
func (ProxiesReported) event() {}
func (StreamClosed) event()    {}
func (Ordered) event()         {}
func (Planned) event()         {}
func (Stored) event()          {}
func (Vanished) event()        {}
func (NotStored) event()       {}

// Effects is what the caller of Step has to do, in this order.
type Effects struct {
	// Propose is to be stored; the answer is the event Stored or NotStored. There is
	// at most one proposal at a time.
	Propose *Proposal
	// Publish is to be published to the proxies. It is never set while a proposal waits
	// for its answer, because only stored state is published.
	Publish *Snapshot
	// Plan is to be run by another goroutine, because it may take seconds; the answer is the event Planned. There is
	// at most one at a time.
	Plan *Planning
	// Health lists the changes of replicas' health, to be logged.
	Health []fleetstate.HealthChange
	// Leader is the change of the leader, to be logged; nil: none.
	Leader *LeaderChange
}

// Proposal is the whole plan object with the changes that it makes.
type Proposal struct {
	Object    store.Object        // plans in the order of the models
	Changes   []fleetstate.Change // of plans; none when something else changes alone
	withLease bool                // the lease is written with it
}
