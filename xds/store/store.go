// Package store keeps the plan object: the few kilobytes from which every
// control plane of a fleet renders its resources, and what operators asked for
// that must outlive a restart. It is read by watching and
// written by compare-and-swap, and nothing else. Where several control planes
// share it, weights and who is ready are in it too, as the one that plans sees
// them; it holds no loads and no counters.
//
// Invariants: readers see whole, valid objects or an error, never a part of
// one; of two writers that started from the same version at most one
// succeeds.
package store

import (
	"context"
	"errors"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// Version names one state of the stored object. It is opaque, comes from the
// store, and is only compared; "" stands for "there is no object yet".
type Version string

// Object is what is stored.
//
// Invariants, checked by Validate:
//  1. every plan is valid, and no model has two,
//  2. no plan's epoch is beyond Epoch, nor Epoch beyond MaxEpoch,
//  3. strings fit: names and texts of at most MaxText bytes,
//  4. no list names a replica or a model twice, but for Past, which has at most
//     MaxPast plans of each model, the oldest first,
//  5. there are at most MaxRefused refusals,
//  6. policy slots are valid, each once and sorted by kind.
type Object struct {
	Epoch   policies.Epoch // of the newest plan
	Plans   []policies.Plan
	Reasons []Reason // why plans changed, oldest first; the writer bounds it
	// Drained lists the replicas that an operator asked to be emptied, in any
	// order; the fleet file has drains of its own.
	Drained []policies.ReplicaID
	// Pins keep models at a plan, Holds keep new ones away for a while.
	Pins  []Pin
	Holds []Hold
	// Past are former plans, which an operator may go back to.
	Past []Past
	// Refused are the resources that proxies have refused, the oldest first.
	Refused []Refusal

	// Slots are what the policy slots of every host should run; those that are not
	// there run the native policies.
	Slots []policyslots.Slot

	// Lease says who plans for the fleet, and until when. The zero value says
	// nobody; only control planes that share a store need it.
	Lease Lease
	// What the holder of the lease sees of the fleet and every control plane
	// shows: the weights that are not neutral, the replicas that take no request
	// for want of a ready engine or because their migrator stops, and the bytes
	// per token. Empty where nobody shares the store.
	Weights  []Weight
	Unready  []policies.ReplicaID
	Stopping []policies.ReplicaID
	Ratios   []Ratio
}

// Reason explains one decision about a model's plan: a change, or that there is
// none. Only Model, Epoch, At and Text are always there.
type Reason struct {
	Model string
	Epoch policies.Epoch // of the plan in force after it
	At    time.Time
	Text  string
	// Decision is what was decided, in a word that package fleet defines; "" is a
	// change of plan.
	Decision string
	// Gain that was predicted, as a share of the cost before. Predicted and
	// Observed are seconds of an iteration, of the stage where they differ most.
	Gain, Predicted, Observed float64
	By                        string // who decided: a control plane or an operator
	// Times is how often it was decided, the last time at Until; 0 and 1 are once.
	Times int
	Until time.Time
}

// Lease is the right to plan.
type Lease struct {
	Holder  string
	Expires time.Time
}

// MaxEpoch bounds the epochs. A fleet that counts them one by one never comes
// near; an edit that does would leave no next epoch.
const MaxEpoch = 1 << 62

// MaxText bounds every string of an object.
const MaxText = 4096

// ErrConflict says that the stored object is not the version that the writer
// started from. The writer reads the new one, which its watch delivers, and
// decides again.
var ErrConflict = errors.New("the stored plan was changed by somebody else")

// Update is one state of the store, as a watch tells it.
type Update struct {
	Object  Object // the last one that could be read; the zero value before the first
	Version Version
	// Err says why what is stored now cannot be read. Object and Version are
	// then those of the last one that could, and the store goes on watching.
	Err error
}

// Store holds one object. Implementations keep this contract, which
// storetest.Run checks:
//
//   - Watch sends the present state at once, also when there is none, and then
//     every change, its own process's included. Changes that follow quickly
//     may be merged into the last one, but the last one always comes. An
//     unreadable object is an Update with Err. The channel is closed soon
//     after the context ends, and nothing of the watch is left then; the
//     caller receives until it is closed or the context ends.
//   - CompareAndSwap stores the object, durably before it returns, if the
//     stored one is still old ("" for none), and returns its new version. It
//     returns ErrConflict (wrapped or not) if not, and then has changed nothing. It
//     refuses an object that is not valid.
//
// Both may be called by any goroutine at any time. Objects are not shared: the
// caller may change what it got, and what it gave.
type Store interface {
	Watch(ctx context.Context) <-chan Update
	CompareAndSwap(ctx context.Context, old Version, object Object) (Version, error)
}
