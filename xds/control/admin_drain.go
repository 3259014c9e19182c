package control

import (
	"context"
	"net/url"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// drainCommand returns a command about the replica of ?replica=.
func (c *Control) drainCommand(order func(policies.ReplicaID) fleetstate.Order, then func(policies.ReplicaID) DrainResult) command {
	return func(ctx context.Context, q url.Values) (any, error) {
		id := policies.ReplicaID(q.Get("replica"))
		if id == "" {
			return nil, badRequest("replica: missing; use ?replica=ID")
		}
		if err := c.fleet.Order(ctx, order(id)); err != nil {
			return nil, err
		}
		return then(id), nil
	}
}

// replicaStatus returns a replica as in /status, with its stage, or the id
// alone if it is gone.
func (c *Control) replicaStatus(id policies.ReplicaID) DrainResult {
	for _, m := range c.fleet.Snapshot().Models {
		for _, r := range m.Replicas {
			if r.ID == id {
				out := DrainResult{Model: m.Name, Replica: replicaOf(r, time.Now())}
				if r.Stage >= 0 {
					out.Stage = resources.StageName(r.Stage)
				}
				return out
			}
		}
	}
	return DrainResult{Replica: Replica{ID: id}}
}

// joinTimeout is how long the answer to an undrain waits for the plan with the replica, and
// joinPoll the time between two looks.
const (
	joinTimeout = 2 * time.Second
	joinPoll    = 20 * time.Millisecond
)

// undrainedStatus is replicaStatus once the replica is in a stage, if it takes requests: the
// leader's next plan has it in a moment.
func (c *Control) undrainedStatus(id policies.ReplicaID) DrainResult {
	for deadline := time.Now().Add(joinTimeout); ; time.Sleep(joinPoll) {
		out := c.replicaStatus(id)
		joins := len(out.Drain) == 0 && out.Stage == "" && out.Role == "" && (out.Health == resources.Healthy.String() || out.Health == resources.Draining.String())
		if !joins || time.Now().After(deadline) {
			return out
		}
	}
}

// DrainResult is what POST /drain and POST /undrain answer, as JSON: the
// present state of the replica. It is empty, and may be stopped, once its
// Residents are 0 in a report that came afterwards.
type DrainResult struct {
	Model string `json:"model"`
	Stage string `json:"stage,omitempty"` // absent: in none
	Replica
}

// confirmRemoval applies the fleet file that was not applied because of the replicas that it
// removes; ?digest= is the object of its fault.
func (c *Control) confirmRemoval(ctx context.Context, q url.Values) (any, error) {
	digest := q.Get("digest")
	if digest == "" {
		return nil, badRequest("digest: missing; it is the object of the fault \"removal\" in /status")
	}
	if err := c.fleet.Order(ctx, fleetstate.ConfirmRemoval{Digest: digest}); err != nil {
		return nil, err
	}
	c.observer.expire()
	return c.Status(), nil
}
