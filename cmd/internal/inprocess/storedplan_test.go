package inprocess

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/store"
)

// expect records a plan before it can route requests.
func (r *fleetHarness) expect(p policies.Plan) { r.plans.Store(p.Epoch, p) }

// plan stores a plan of the first model and waits until the data plane routes by it and the
// previous plan is gone.
func (r *fleetHarness) plan(stages ...policies.Stage) policies.Plan {
	r.T.Helper()
	p := r.write(policies.Plan{Model: llm, Stages: stages})
	r.waitForPlan(fmt.Sprintf("epoch %d in use", p.Epoch), p.Epoch, func(control.Status) bool { return true })
	return p
}

// waitForPlan waits until a plan is in use and a condition holds. It fails the test at once if the control plane
// has replaced the plan, and shows why: the plan would never be in use again.
func (r *fleetHarness) waitForPlan(what string, epoch policies.Epoch, holds func(control.Status) bool) control.Status {
	r.T.Helper()
	return r.waitForStatus(what, func(s control.Status) bool {
		if s.Epoch > epoch {
			r.T.Fatalf("waiting for: %s: epoch %d has been replaced:\n%s", what, epoch, summarize(s))
		}
		return inUse(s, epoch) && holds(s)
	})
}

// inUse reports whether a plan's routes are acknowledged and its rollout is complete.
func inUse(s control.Status, epoch policies.Epoch) bool {
	if s.PublishedEpoch != epoch || s.Phase != "idle" {
		return false
	}
	for _, n := range s.Nodes {
		if n.Connected && n.Epoch == epoch && n.Current {
			return true
		}
	}
	return false
}

// write stores a plan under the next epoch, together with the other models' plans.
func (r *fleetHarness) write(p policies.Plan) policies.Plan {
	r.T.Helper()
	for {
		o := r.object
		o.Epoch++
		p.Epoch = o.Epoch
		o.Plans = slices.DeleteFunc(slices.Clone(o.Plans), func(q policies.Plan) bool { return q.Model == p.Model })
		o.Plans = append(o.Plans, p)
		version, err := r.store.CompareAndSwap(r.T.Context(), r.version, o)
		if err == nil {
			r.object, r.version = o, version
			return p
		}
		if !errors.Is(err, store.ErrConflict) {
			r.T.Fatal(err)
		}
		ctx, cancel := context.WithCancel(r.T.Context())
		updates := r.store.Watch(ctx)
		u := <-updates
		cancel()
		for range updates {
		}
		if u.Err != nil {
			r.T.Fatal(u.Err)
		}
		r.object, r.version = u.Object, u.Version
	}
}

// stages divides lengths at the cuts, and assigns the replicas of members[i] to stage i.
func stages(cuts []policies.Tokens, members ...[]policies.ReplicaID) []policies.Stage {
	var out []policies.Stage
	low := policies.Tokens(0)
	for i, m := range members {
		high := policies.Unbounded
		if i < len(cuts) {
			high = cuts[i]
		}
		out = append(out, policies.Stage{Low: low, High: high, Replicas: m})
		low = high
	}
	return out
}

// ids returns replica ids.
func ids(n ...int) (out []policies.ReplicaID) {
	for _, i := range n {
		out = append(out, policies.ReplicaID("r"+strconv.Itoa(i)))
	}
	return out
}
