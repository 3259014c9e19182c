package sim

import (
	"time"

	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/policies/place"
)

// maxPulls is how many prefixes a replica sends or receives at once, as for migrations.
const maxPulls = 4

// pull is a prefix that is copied to the replica where a request will start.
type pull struct {
	request  *request
	from, to *replica
	lives    [2]uint32 // of from and to
	blocks   batch.Reservation
	length   policies.Tokens // that to has then
	tokens   policies.Tokens // of them from from
}

// pullPrefix starts to copy the beginning of a request's prompt to its replica, if a peer is known to have
// more of it and a copy is faster than to compute it. It returns false if the request starts at once.
func (c *cascade) pullPrefix(q *request, at int) bool {
	f := c.fronts[at]
	to := f.replica
	steps := c.stepsOf(q)
	if at == q.front {
		steps = steps[:min(q.known, len(steps))] // what it has learnt since was too late
	} else {
		steps = steps[:c.knownBlocks(f, q, steps)] // the peer reads the prompt again
	}
	if !c.pull || len(steps) == 0 || to.receiving >= maxPulls {
		return false
	}
	holder, held := f.peers.LongestPrefix(steps)
	if held == 0 {
		return false
	}
	from := c.frontOf(holder.Replica).replica
	if from.failed || from.sending >= maxPulls {
		return false
	}
	profile := &c.sim.cfg.Profile
	decide := func(held policies.Tokens) place.PullDecision {
		share := max(1, from.sending+1, to.receiving+1)
		return place.DecidePull(place.PullOffer{
			Own: to.cachedTokens(q.Request), Held: held, TokenBytes: profile.KVBytesPerToken, Rate: links.Rate(profile.LinkRate / float64(share)), Cost: profile.Cost(),
		})
	}
	if !decide(held).Pull {
		return false
	}
	decision := decide(from.cachedTokens(q.Request)) // the peer answers what it really has
	if !decision.Pull {
		return false
	}
	p := &pull{request: q, from: from, to: to, lives: [2]uint32{from.life, to.life}, tokens: decision.Tokens, length: to.cachedTokens(q.Request) + decision.Tokens}
	chain := blockHashes(q.Request, defaultBlockTokens)[:p.length/defaultBlockTokens]
	if _, err := to.scheduler.PinPrefix(&p.blocks, batch.NewLength(batch.Request{}, int(p.length), chain), true); err != nil {
		return false
	}
	from.sending++
	to.receiving++
	to.accept(q)
	q.arrived += decision.Transfer
	q.hit += decision.Tokens
	c.sim.queue.push(event{at: c.sim.now + time.Duration(decision.Transfer)*time.Microsecond, kind: pulled, arg: p})
	return true
}

// endPull queues a request whose prefix has been copied, or could not be.
func (c *cascade) endPull(p *pull) {
	p.from.sending--
	p.to.receiving--
	if p.to.life != p.lives[1] {
		return // the request went with its replica
	}
	if p.from.life == p.lives[0] && p.to.scheduler.CommitPrefix(&p.blocks, int(p.length)) == nil {
		c.pulls++
		c.pulledTokens += p.tokens
	} else {
		p.to.scheduler.Release(&p.blocks)
	}
	if !p.request.aborted {
		p.to.inbox = append(p.to.inbox, p.request)
	}
	c.sim.resume(p.to)
}
