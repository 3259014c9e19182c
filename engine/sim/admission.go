package sim

import (
	"fmt"

	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/admission"
)

// Refused is the kind of failure of a request that no replica takes because it would wait for too long.
const Refused replay.Kind = "http 429"

// newLedger returns the ledger of a front end: without Config.Admission it admits all.
func (c *cascade) newLedger() admission.Ledger {
	cfg := &c.sim.cfg
	if !cfg.Admission {
		return admission.Ledger{}
	}
	return admission.Ledger{Decider: admission.Decider{Cost: cfg.Profile.Cost(), Capacity: cfg.KVTokens, Batch: cfg.MaxBatch}}
}

// admit returns the replica that takes a request, first of all the one where it was placed, or −1 if it is
// refused: as the front end does, it asks one other, and then believes that the fleet is full.
func (c *cascade) admit(q *request, to int) int {
	var tried []policies.ReplicaID
	for range 2 {
		f := c.fronts[to]
		entry, v := f.ledger.Admit(admission.Arrival{Input: q.Input, Cached: f.replica.cachedTokens(q.Request), MaxOutput: q.Output})
		if v.Admit {
			q.entry = entry
			return to
		}
		tried = append(tried, f.id)
		front := c.fronts[q.front]
		if to != q.front { // the own engine is asked next
			to = q.front
			continue
		}
		next, ok := front.peers.Rescue(c.now(), policies.Request{Input: q.Input, MaxOutput: q.Output}, tried)
		if !ok || next.Replica == "" || c.frontOf(next.Replica).replica.failed {
			break
		}
		to = c.index[next.Replica]
	}
	return -1
}

// refuse ends a request that no replica takes.
func (c *cascade) refuse(q *request) {
	c.sim.endRequest(q, Refused, fmt.Sprintf("replica %d is overloaded", q.front))
}

// leave removes a request that goes on elsewhere, or nowhere, from the work that a front end admitted.
func (c *cascade) leave(q *request, f *front) {
	if f == c.fronts[f.replica.index] { // not that of an earlier life
		f.ledger.End(&q.entry, 0, false)
	}
}

// join counts a request that goes on at another front end; such a one is never refused.
func (c *cascade) join(q *request, f *front, hasKV bool) {
	q.entry, _ = f.ledger.Admit(admission.Arrival{Input: q.Input, MaxOutput: q.Output, Sent: policies.Tokens(q.tokens), HasKV: hasKV, Admitted: true})
}
