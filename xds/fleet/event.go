package fleet

import (
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Event is what happens to a State: one of Tick, Replicas, Reported, Proxied, Closed,
// Drain, Undrain, Pin, Unpin, Rollback, Policies, Refuse, Stored and Refused.
type Event interface{ event() }

// Tick says that time has passed.
type Tick struct{}

// Replicas is the whole configured list. Who is missing from it leaves, who is
// new joins, and a changed Draining mark drains or brings back. The list must
// have passed Check.
type Replicas struct{ List []policies.Replica }

// Reported is a report of a configured replica.
type Reported struct{ Report Report }

// Closed says that a replica's report stream has ended. The replica counts as
// unready only when no report comes for the grace: streams break for reasons
// that do not concern requests.
type Closed struct{ Replica policies.ReplicaID }

// Drain says that an operator wants a replica emptied, Undrain that it may
// serve again. State.Permits says which orders are obeyed.
type (
	Drain   struct{ Replica policies.ReplicaID }
	Undrain struct{ Replica policies.ReplicaID }
)

// Stored is the content of the plan store: what was just proposed, what a
// restart finds, or what another server wrote. Plans in it are in force, unless
// they are older than those that are or differ under the same epoch: those are
// proposed anew. Its drains are in force in any case.
type Stored struct{ Object store.Object }

// Refused says that the present proposal was not stored. The State keeps its
// plans and proposes again later.
type Refused struct{}

func (Tick) event()     {}
func (Replicas) event() {}
func (Reported) event() {}
func (Closed) event()   {}
func (Drain) event()    {}
func (Undrain) event()  {}
func (Stored) event()   {}
func (Refused) event()  {}

// Effects is what the caller of Step has to do, in this order.
type Effects struct {
	// Propose is to be stored; the answer is the event Stored or Refused. There
	// is at most one proposal at a time.
	Propose *Proposal
	// Publish is to be shown to the proxies. Never set while a proposal waits
	// for its answer, because what is published is always stored.
	Publish *Snapshot
}

// Proposal is the whole plan object with the changes that it makes.
type Proposal struct {
	Object  store.Object // plans in the order of the models
	Changes []Change     // of plans; none when something else changes alone
	lease   bool         // the lease is written with it
}

// Change is one entry of the history: a model's plan was replaced, or is kept
// although somebody thought about it; see Changes.
type Change struct {
	Time  time.Time
	Model string
	Epoch policies.Epoch // of the plan in force after it
	// Decision is one of the words above; "" is a change of plan that an earlier
	// version wrote down.
	Decision string
	Reason   string // what happened, in a few words
	By       string // the operator, or the control plane; "" for one without a name
	// Stages is what came into force; nil for a change before the last restart.
	Stages []policies.Stage
	// Gain is the predicted gain over the plan before, as a share of its cost;
	// 0 where nothing was compared.
	Gain float64
	// Predicted and Observed are the seconds of an iteration, at the flow of the
	// time, of the stage where they differed most; 0 where nothing was measured.
	Predicted, Observed float64
	// Times is how often in a row this was decided, the last time at Until; 0
	// stands for once.
	Times int
	Until time.Time
}
