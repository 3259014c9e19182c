package fleetstate

import (
	"errors"
	"fmt"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// Order is one of Drain, Undrain, Pin, Unpin, Rollback, Refuse, ConfirmRemoval and ChangeSlots. It is in force when
// package fleet has stored it.
type Order interface{ order() }

// Drain empties a replica: it leaves its stage at once, proxies see it as draining,
// its migrator is notified, and restarts keep the drain until Undrain or until the
// replica leaves the configuration. A second Drain changes nothing.
type Drain struct{ Replica policies.ReplicaID }

// Undrain ends a Drain: the replica serves again. It changes nothing for a replica
// that is not drained.
type Undrain struct{ Replica policies.ReplicaID }

// Pin keeps a model's plan until Unpin: the one in force, or an earlier one, which
// comes into force again under a new epoch. Repairs and drains still change which
// replicas serve each stage.
type Pin struct {
	Model string
	Epoch policies.Epoch // 0: the plan in force
	By    string         // the operator
}

// Unpin ends a Pin; the planner takes over. It changes nothing for a model that is
// not pinned.
type Unpin struct{ Model, By string }

// Rollback puts an earlier plan in force again, under a new epoch, and holds new
// plans off for as long as after a plan that was rolled back for its slowness.
type Rollback struct {
	Model string
	To    policies.Epoch // 0: the plan before the one in force
	Keep  bool           // also pin it
	By    string
}

// Refuse rolls a plan back because proxies refuse it, as Rollback does. It changes nothing
// unless the plan is in force, or if the plan itself came from a rollback. While new plans are
// held off it is refused with ErrHeldOff and is to be ordered again: a proxy that refuses all
// plans causes one rollback per hold-off.
type Refuse struct {
	Model string
	Epoch policies.Epoch // the refused plan's
	To    policies.Epoch // the plan that the proxies have
	Why   string         // what they say
	By    string         // the control plane
}

// ConfirmRemoval lets every control plane of the store apply a configured list that
// lacks more than half of a model's replicas, by the list's digest.
type ConfirmRemoval struct{ Digest string }

// ChangeSlots changes what the policy slots of all hosts should run. Change is pure:
// it returns the slots to store in place of the stored ones, or an error. It may be
// called more than once.
type ChangeSlots struct {
	Change func([]policyslots.Slot) ([]policyslots.Slot, error)
}

func (Drain) order()          {}
func (Undrain) order()        {}
func (Pin) order()            {}
func (Unpin) order()          {}
func (Rollback) order()       {}
func (Refuse) order()         {}
func (ConfirmRemoval) order() {}
func (ChangeSlots) order()    {}

// Reasons why an order cannot be executed.
var (
	ErrUnknownReplica = errors.New("no such replica is configured; \"cascade status\" lists them")
	ErrLastReplica    = errors.New("no other replica of its model could serve: start one, or undrain one, first")
	ErrDrainedByFile  = errors.New("the fleet file drains it: remove its drain mark there")
	ErrUnknownModel   = errors.New("no such model is configured; \"cascade status\" lists them")
	ErrNoPlan         = errors.New("no such plan is kept")
	ErrPinned         = errors.New("its plan is pinned: end that first with \"cascade plan pin --undo\"")
	ErrSamePlan       = errors.New("the plan in force already divides the lengths like it")
	ErrHeldOff        = errors.New("plans are held off after a rollback; the refused plan is rolled back when that ends")
	ErrDenied         = errors.New("the site's rules deny it")
	ErrNothingHeld    = errors.New("no removal of replicas waits to be confirmed here")
	ErrOtherRemoval   = errors.New("the fleet file has changed since: look at the status, and confirm again")
	ErrNotStored      = errors.New("the plan store did not accept it; nothing has changed, try again") // wrapped with the reason
	ErrUnanswered     = errors.New("not stored yet, the change may still be made")                     // wrapped with the reason
)

// CheckDrain returns an error for a Drain that cannot be executed: at least one replica
// of each model that takes requests must stay.
func CheckDrain(g *Registry, id policies.ReplicaID) error {
	r := g.Get(id)
	switch {
	case r == nil || r.Removed:
		return fmt.Errorf("replica %q: %w", id, ErrUnknownReplica)
	case r.DrainOrdered(), r.Prefill:
		return nil // it is drained already, or takes no requests
	}
	for _, o := range g.All() {
		if o != r && o.Model == r.Model && o.Ready() && !o.Prefill {
			return nil
		}
	}
	return fmt.Errorf("replica %q: %w", id, ErrLastReplica)
}

// CheckUndrain returns an error for an Undrain that cannot be executed.
func CheckUndrain(g *Registry, id policies.ReplicaID) error {
	r := g.Get(id)
	switch {
	case r == nil || r.Removed:
		return fmt.Errorf("replica %q: %w", id, ErrUnknownReplica)
	case r.Draining && !r.Drained:
		return fmt.Errorf("replica %q: %w", id, ErrDrainedByFile)
	}
	return nil
}
