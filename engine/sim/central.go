package sim

import (
	"time"

	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/baseline"
)

// central moves the requests of a fleet whose router does that: a baseline.Rebalancer or a
// baseline.Disaggregator. There is one proxy, which counts every request where it is.
type central struct {
	sim        *Sim
	rebalancer baseline.Rebalancer    // nil: none
	split      baseline.Disaggregator // nil: none
	prefill    int                    // of a split fleet: the first replicas compute prompts
	// arriving are, by replica of a split fleet, the requests that wait for its KV, frozen where they are.
	arriving [][]*handoff
	counts   Moves
	// Scratch memory.
	lengths []policies.Tokens
	movable []*request
	targets []baseline.Replica
}

// handoff is a request that has its first token and waits for a place where it is generated.
type handoff struct {
	request *request
	from    *replica
	life    uint32 // of from
	since   time.Duration
}

// newCentral returns nil for a router that moves nothing.
func newCentral(s *Sim, router baseline.Router) *central {
	c := &central{sim: s}
	c.rebalancer, _ = router.(baseline.Rebalancer)
	c.split, _ = router.(baseline.Disaggregator)
	switch {
	case c.split != nil:
		c.prefill, c.arriving = s.cfg.PrefillReplicas, make([][]*handoff, len(s.replicas))
	case c.rebalancer == nil:
		return nil
	}
	return c
}

// movesRequests reports whether a policy is the name of a router that moves requests.
func movesRequests(policy string) bool {
	router, _ := baseline.New(policy)
	_, rebalances := router.(baseline.Rebalancer)
	_, splits := router.(baseline.Disaggregator)
	return rebalances || splits
}

// start schedules what happens regularly.
func (c *central) start() {
	if c.rebalancer != nil {
		c.sim.queue.push(event{at: pollInterval, kind: rebalance})
	}
}

// pollInterval is baseline.PollInterval.
const pollInterval = time.Duration(baseline.PollInterval) * time.Microsecond

// candidates returns the replicas among which the router routes a new request.
func (c *central) candidates(all []baseline.Replica) []baseline.Replica {
	if c.split != nil {
		return all[:c.prefill]
	}
	return all
}

// load returns the load of a replica as the router sees it: of a split fleet, the prompts that wait to
// be computed, or what is generated and will be.
func (c *central) load(index int, l policies.Load) policies.Tokens {
	switch {
	case c.split == nil:
		return l.Held + l.Promised
	case index < c.prefill:
		return l.Promised
	}
	for _, h := range c.arriving[index] {
		l.Held += h.request.length()
	}
	return l.Held + l.Promised
}

// rebalance lets the router move running requests, by loads as of now.
func (c *central) rebalance() {
	p := &c.sim.proxies[0]
	c.sim.measureLoads()
	p.applyLoads()
	for _, pair := range c.rebalancer.Rebalance(p.replicas) {
		c.move(c.sim.replicas[pair.From], c.sim.replicas[pair.To])
	}
	c.sim.queue.push(event{at: c.sim.now + pollInterval, kind: rebalance})
}

// move moves a request, unless one of the replicas moves one already or there is no room.
func (c *central) move(from, to *replica) {
	if len(from.transfers)+len(to.transfers) > 0 {
		return
	}
	c.movable, c.lengths = c.movable[:0], c.lengths[:0]
	for _, q := range from.resident {
		if q.tokens > 0 {
			c.movable, c.lengths = append(c.movable, q), append(c.lengths, q.length())
		}
	}
	at := c.rebalancer.Choose(c.lengths)
	if at < 0 {
		return
	}
	t := &transfer{request: c.movable[at], from: from, to: to, blocks: &batch.Reservation{}}
	if to.scheduler.Reserve(t.blocks, int(t.request.length())+lastRound) != nil {
		return
	}
	t.ended = func(moved bool) {
		if !moved {
			c.counts.Failed++
			return
		}
		c.counts.Moved++
		c.counts.Outlier++
		c.sim.proxies[0].move(t.request, from.index)
	}
	c.sim.mover.start(t)
}

// handOff freezes a request that has its first token and sends it to the replica that generates the
// rest. If all of them are down, it goes on where it is.
func (c *central) handOff(q *request) {
	if c.split == nil || q.replica >= c.prefill {
		return
	}
	from := c.sim.replicas[q.replica]
	if !from.freeze(q) {
		return // preempted: it starts again here, with its second token
	}
	c.enqueue(&handoff{request: q, from: from, life: from.life, since: c.sim.now})
}

// enqueue lets a frozen request wait for the KV of the replica that the router chooses.
func (c *central) enqueue(h *handoff) {
	p := &c.sim.proxies[0]
	c.targets = append(c.targets[:0], p.replicas[c.prefill:]...)
	for i := range c.targets { // one that does not answer is found out at once
		c.targets[i].Down = c.targets[i].Down || c.sim.replicas[c.prefill+i].failed
	}
	to := c.split.RouteDecode(h.request.length(), c.targets)
	if to < 0 {
		h.from.scheduler.Thaw(h.request.sequence)
		c.sim.resume(h.from)
		return
	}
	to += c.prefill
	p.replicas[to].Load += h.request.length()
	p.since[to] += h.request.length()
	c.arriving[to] = append(c.arriving[to], h)
	c.admit(c.sim.replicas[to])
}

// admit starts the transfers of the requests that wait for a replica and fit, in the order in which
// they came.
func (c *central) admit(to *replica) {
	if c.split == nil || to.failed {
		return
	}
	for len(c.arriving[to.index]) > 0 {
		h := c.arriving[to.index][0]
		if h.life != h.from.life { // it is lost
			c.arriving[to.index] = c.arriving[to.index][1:]
			continue
		}
		t := &transfer{request: h.request, from: h.from, to: to, blocks: &batch.Reservation{}}
		if to.scheduler.Reserve(t.blocks, int(h.request.length())+1) != nil {
			return
		}
		c.arriving[to.index] = c.arriving[to.index][1:]
		t.ended = func(moved bool) { c.endHandoff(t, moved) }
		c.sim.mover.startFrozen(t, h.since)
	}
}

// endHandoff counts a transfer to a decode replica. One that failed because the target is lost starts
// again with another target.
func (c *central) endHandoff(t *transfer, moved bool) {
	if moved {
		c.counts.Moved++
		c.counts.Prefill++
		c.sim.proxies[0].move(t.request, t.from.index)
		return
	}
	c.counts.Failed++
	if t.from.life == t.lives[0] {
		c.handOff(t.request)
	}
}

// lose sends the requests that wait for a lost replica elsewhere.
func (c *central) lose(r *replica) {
	if c.split == nil {
		return
	}
	waiting := c.arriving[r.index]
	c.arriving[r.index] = nil
	for _, h := range waiting {
		if h.life == h.from.life {
			c.enqueue(h)
		}
	}
}

// moves counts what became of the requests that moved.
func (c *central) moves() Moves {
	m := c.counts
	x := c.sim.mover.moves()
	m.Tokens, m.StallSeconds = x.Tokens, x.StallSeconds
	return m
}
