package sim

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/policies"
)

// What production does at most: proxies send a request that finds no listener again, to other replicas
// (xds/resources; other routers alike), and front ends resume a request elsewhere (migrator/frontend).
const (
	proxyAttempts = 4
	maxAttempts   = 3
)

// lose handles the loss of a replica with its front end, whose requests gone ran there: clients of that
// front end see a cut, wherever their requests run, and other front ends resume theirs elsewhere.
func (c *cascade) lose(r *replica, gone []*request) {
	for _, other := range c.sim.replicas {
		for _, q := range other.resident {
			if q.front == r.index {
				gone = append(gone, q)
			}
		}
	}
	slices.SortFunc(gone, func(a, b *request) int { return cmp.Compare(a.index, b.index) })
	for _, q := range gone {
		switch at := c.sim.replicas[q.replica]; {
		case q.front != r.index:
			c.rescue(q, r.index)
		case at != r:
			if q.transfer != nil {
				c.sim.mover.fail(q.transfer)
			}
			at.abort(q)
			c.leave(q, c.fronts[at.index])
			c.sim.resume(at)
			fallthrough
		default:
			c.sim.endRequest(q, replay.Cut, fmt.Sprintf("the front end of replica %d failed", r.index))
		}
	}
}

// rescue lets a request's front end resume it after its replica was lost: at its own engine, or where its
// view of the peers says.
func (c *cascade) rescue(q *request, lost int) {
	f := c.fronts[q.front]
	tried := []policies.ReplicaID{c.fronts[lost].id}
	for len(tried) < maxAttempts {
		to := f
		if slices.Contains(tried, f.id) || f.draining {
			target, ok := f.peers.Rescue(c.now(), policies.Request{Input: q.Input, Output: policies.Tokens(q.tokens), MaxOutput: q.Output}, tried)
			if !ok {
				break
			}
			if target.Replica != "" {
				to = c.frontOf(target.Replica)
			}
		}
		if !to.replica.failed {
			c.rescued++
			to.replica.resubmit(q, c.now())
			c.join(q, to, false)
			c.sim.resume(to.replica)
			return
		}
		f.peers.MarkGone(to.id)
		tried = append(tried, to.id)
	}
	c.sim.endRequest(q, replay.Cut, fmt.Sprintf("replica %d failed, and no other one took the request", lost))
}

// restart begins a new life of a front end, whose replica is back.
func (c *cascade) restart(i int) error {
	old := c.fronts[i]
	c.past.add(old)
	f, err := c.newFront(old.id, old.replica, c.seeds.Uint64())
	if err != nil {
		return fmt.Errorf("simulate: %w", err)
	}
	f.stage, f.weight, f.seen, f.down, f.draining, f.reported, f.reportedAt = old.stage, old.weight, old.seen, old.down, old.draining, old.reported, old.reportedAt
	f.peers.SetView(c.plan, c.replicas)
	c.fronts[i] = f
	return nil
}

// setDown makes a failure, or its end, known to proxies, control plane and peers.
func (c *cascade) setDown(i int, down bool) {
	c.fronts[i].down = down
	for j, f := range c.fronts {
		switch {
		case j == i:
		case down:
			f.peers.MarkGone(c.fronts[i].id)
		default:
			f.peers.MarkBack(c.fronts[i].id)
		}
	}
	c.repair()
}

// setDraining orders a drain, or its end.
func (c *cascade) setDraining(i int, draining bool) {
	c.fronts[i].draining, c.replicas[i].Draining = draining, draining
	for _, f := range c.fronts {
		f.peers.SetView(c.plan, c.replicas)
	}
	c.repair()
}

// repair lets the planner change what cannot wait for a period.
func (c *cascade) repair() {
	for i, f := range c.fronts {
		f.describe(&c.view.Replicas[i])
	}
	change, again := c.plans.Repair(c.now(), &c.view.View)
	c.repairAgain = again
	if change != nil {
		c.adopt(change)
	}
}

// resubmit queues a request that goes on here, by re-prompting.
func (r *replica) resubmit(q *request, now policies.Micros) {
	rest := batch.Request{MaxOutput: int(int64(q.Output) - q.tokens), Receiver: q}
	q.sequence = batch.NewLength(rest, int(q.length()), blockHashes(q.Request, r.config.Pool.BlockTokens))
	q.resumed, q.epoch, q.since = true, q.epoch+1, now
	r.inbox = append(r.inbox, q)
	r.add(q)
}

// abort removes a request that has not ended, in the middle of an iteration or not.
func (r *replica) abort(q *request) {
	r.scheduler.Abort(q.sequence)
	r.inbox = slices.DeleteFunc(r.inbox, func(x *request) bool { return x == q })
	r.remove(q)
	q.aborted = true
}
