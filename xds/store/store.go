// Package store keeps what the control planes of a fleet share: the plan object, from
// which every one of them renders its resources, policy modules, notes about each other,
// flow counters, and the lease that says who plans.
//
// New returns a Store on a Backend: one root under compare-and-swap, and blobs. The Store
// builds all else on these few methods, the same for each Backend: NewFile keeps files, for
// the control planes of one host, NewMemory nothing beyond the process; packages etcd and
// kubernetes are for several hosts.
//
// Invariants: readers see whole, valid objects or an error, never a part of one; of two
// writers that started from the same version at most one succeeds, also where an answer is
// lost; the root names only blobs that exist. No decision compares the clocks of two hosts:
// age counts from when this process first saw a blob.
package store

import (
	"context"
	"errors"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// Version identifies one state of the stored object. It is opaque, comes from the
// store, and is only compared; "" means that there is no object yet.
type Version string

// Object is what is stored. Its tags are the names in the stored form, where fields may
// be missing: without them no replica is drained, no plan is pinned, and so on.
//
// Invariants, checked by Validate:
//  1. every plan is valid, and no model has two,
//  2. no plan's epoch is greater than Epoch, nor Epoch than MaxEpoch,
//  3. names and texts have at most MaxText bytes,
//  4. no list names a replica or a model twice, but for Past, which has at most
//     MaxPast plans of each model, the oldest first,
//  5. policy slots are valid, each once and sorted by kind.
type Object struct {
	Epoch   policies.Epoch  `json:"epoch,omitempty"` // of the newest plan
	Plans   []policies.Plan `json:"plans"`
	Reasons []Reason        `json:"reasons,omitempty"` // why plans changed, oldest first; the writer bounds it
	// Drained lists the replicas that operators drain, in any order; the fleet file has
	// drains of its own.
	Drained []policies.ReplicaID `json:"drained,omitempty"`
	// Pins keep models at a plan, Holds hold new plans off for a while.
	Pins  []Pin  `json:"pins,omitempty"`
	Holds []Hold `json:"holds,omitempty"`
	// FormerPlans are former plans, which an operator may return to.
	FormerPlans []FormerPlan `json:"former_plans,omitempty"`

	// ConfirmedRemoval is the digest of the configured list that an operator has last
	// confirmed although it lacks more than half of a model's replicas.
	ConfirmedRemoval string `json:"confirmed_removal,omitempty"`

	// Slots are the desired state of the policy slots of every host; slots that are
	// missing run the native policies.
	Slots []policyslots.Slot `json:"slots,omitempty"`

	// Lease says which control plane plans for the fleet, and until when. The zero
	// value means no lease.
	Lease Lease `json:"lease,omitzero"`
	// The fields below are the state of the fleet that the leader sees and every
	// control plane publishes: the weights that are not neutral, the replicas that take
	// no request because their engine is not ready or their migrator stops, and the
	// bytes per token.
	Weights  []Weight             `json:"weights,omitempty"`
	Unready  []policies.ReplicaID `json:"unready,omitempty"`
	Stopping []policies.ReplicaID `json:"stopping,omitempty"`
	Ratios   []Ratio              `json:"bytes_per_token,omitempty"`
	// Counts are the requests that the leader has counted, so that the counter of a
	// control plane that takes over goes on from there.
	Counts []RequestCount `json:"requests_seen,omitempty"`
}

// Reason explains one decision about a model's plan: to change it, or to keep it. Only
// Model, Epoch, At and Text are always set.
type Reason struct {
	Model string         `json:"model"`
	Epoch policies.Epoch `json:"epoch"` // of the plan in force after it
	At    time.Time      `json:"at"`
	Text  string         `json:"text"`
	// Decision is one of the constants of package fleetstate; "" is a change of plan.
	Decision string `json:"decision,omitempty"`
	// Gain is the predicted gain, as a share of the previous cost. Predicted and
	// Observed are the seconds of an iteration in the stage where they differ most.
	Gain      float64 `json:"gain,omitempty"`
	Predicted float64 `json:"predicted_seconds,omitempty"`
	Observed  float64 `json:"observed_seconds,omitempty"`
	By        string  `json:"by,omitempty"` // the control plane or operator that decided
	// Times is how often in a row it was decided, the last time at Until; 0 means once.
	Times int       `json:"times,omitempty"`
	Until time.Time `json:"until,omitzero"`
}

// Lease is the right to plan.
type Lease struct {
	Holder  string    `json:"holder"`
	Expires time.Time `json:"expires"`
}

// MaxEpoch bounds the epochs, so that an edit cannot leave the fleet without a next
// epoch.
const MaxEpoch = 1 << 62

// MaxText bounds every string of an object.
const MaxText = 4096

// ErrConflict says that the stored object is not the version that the writer started
// from. The writer waits until its watch delivers the new object, and decides again.
var ErrConflict = errors.New("another writer changed the stored plan")

// ErrUnavailable says that the store does not answer, or refuses this control plane, so that
// nothing is known about the stored object. Where a write fails with it, the object may have been stored nevertheless,
// or may yet be.
var ErrUnavailable = errors.New("the store does not answer")

// Update is one state of the store, as a watch delivers it.
type Update struct {
	Object  Object // the last one that could be read; the zero value before the first
	Version Version
	// Err says why the stored object cannot be read. Object and Version are then
	// those of the last readable one, and the watch continues.
	Err error
}

// Plans holds one object. Store implements it, and keeps this contract, which storetest.Run
// checks for every Backend:
//
//   - Watch sends the present state at once, also where there is no object, and then
//     every change, including those of its own process. Changes in quick succession
//     may be merged into the last one, which always comes. An unreadable object is an
//     Update with Err. The channel is closed soon after the context ends, when the
//     watch has no goroutine or file left; the caller receives until it is closed or
//     the context ends.
//   - CompareAndSwap stores the object, durably before it returns, if the
//     stored one is still old ("" for none), and returns its new version. It
//     returns ErrConflict (wrapped or not) if not, and then has changed nothing. It
//     refuses an invalid object, and does not overwrite one that cannot be read.
//
// Both may be called by any goroutine at any time. Objects are copied: the caller may
// change what it received and what it passed.
type Plans interface {
	Watch(ctx context.Context) <-chan Update
	CompareAndSwap(ctx context.Context, old Version, object Object) (Version, error)
}
