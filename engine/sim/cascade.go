package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// cascade is Cascade's control plane, proxies and migrators.
type cascade struct {
	variant
	sim      *Sim
	edges    []policies.Tokens
	planning planner.Config
	plans    *planner.Planner
	// observed is what the chain is made of, and chained says that it is in force.
	observed planner.Period
	chained  bool
	view     planView
	decider  *decider // nil: front ends place requests
	plan     policies.Plan
	members  [][]int            // the indices of the replicas of each of its stages
	replicas []policies.Replica // as the control plane lists them
	fronts   []*front           // one for each replica
	index    map[policies.ReplicaID]int
	robin    *RoundRobin // the proxies'
	tried    []int       // scratch memory of route
	running  map[bidask.Deal]*transfer
	// residents is scratch memory of scan.
	residents []bidask.Resident
	// repairAgain says that the planner wants Repair to be called soon.
	repairAgain  bool
	rescued      uint64
	pulls        uint64
	pulledTokens policies.Tokens
	steps        []prefix.Step // scratch memory of stepsOf
	past         Moves         // of earlier lives
	// Of placement by price: what replicas have accepted and other front ends do not know yet, and scratch memory.
	arrived  [][]sentArrival
	state    place.State
	living   []place.Resident
	queue    []*request
	arrivals []place.Waiting
	seeds    *rand.Rand // of the front ends
}

// newCascade makes the parts of a policy of Cascade, with its first plan.
func newCascade(s *Sim) (*cascade, error) {
	c := &cascade{
		variant: variants[s.cfg.Policy], sim: s,
		index: map[policies.ReplicaID]int{}, robin: NewRoundRobin(s.cfg.Replicas), running: map[bidask.Deal]*transfer{},
	}
	c.edges = policies.BucketEdges(min(maxContext, s.cfg.KVTokens), c.perOctave())
	c.seeds = rand.New(rand.NewPCG(s.cfg.Seed, 0xca5))
	for i, r := range s.replicas {
		id := policies.ReplicaID(fmt.Sprintf("r%04d", i))
		if c.affinity {
			if err := c.observe(r); err != nil {
				return nil, fmt.Errorf("simulate: %w", err)
			}
		}
		f, err := c.newFront(id, r, c.seeds.Uint64())
		if err != nil {
			return nil, fmt.Errorf("simulate: %w", err)
		}
		c.fronts = append(c.fronts, f)
		c.index[id] = i
		c.replicas = append(c.replicas, policies.Replica{
			ID: id, Model: modelName, Address: string(id), Peer: string(id), Capacity: policies.Capacity{KV: s.cfg.KVTokens, Batch: s.cfg.MaxBatch},
			Prefill: i < s.cfg.PrefillReplicas,
		})
	}
	if c.knows != 0 {
		c.decider = newDecider(c, c.knows)
	}
	return c, c.startPlanning()
}

// start schedules what happens regularly, each replica at another moment.
func (c *cascade) start() {
	n := time.Duration(len(c.fronts))
	for i := range c.fronts {
		c.sim.queue.push(event{at: summaryInterval * time.Duration(i) / n, kind: summary, index: int32(i)})
		c.sim.queue.push(event{at: scanInterval * time.Duration(i) / n, kind: scan, index: int32(i)})
	}
	c.sim.queue.push(event{at: tickInterval, kind: planTick})
}

func (c *cascade) now() policies.Micros { return policies.Micros(c.sim.now.Microseconds()) }

// route returns the replica where a request starts, −1 for none: the proxy picks a front end of the stage
// of its prompt's length, which may forward it once. The proxy tries others if that does not answer, and
// the front end keeps what it cannot forward.
func (c *cascade) route(q *request) int {
	if c.decider != nil {
		to := c.decider.route(q)
		q.front = max(to, 0)
		q.known = len(q.Prefix)
		return to
	}
	stage := c.plan.StageOf(q.Input)
	c.tried = c.tried[:0]
	steps := c.stepsOf(q)
	for range proxyAttempts {
		i := c.pickFrom(stage)
		if i < 0 {
			break
		}
		f := c.fronts[i]
		if f.replica.failed {
			c.tried = append(c.tried, i)
			continue
		}
		q.front = i
		f.seen++
		if c.blind {
			return i
		}
		q.known = c.knownBlocks(f, q, steps)
		r := policies.Request{Input: q.Input, MaxOutput: q.Output}
		if c.priced {
			r.MaxOutput = 0 // that would be a clairvoyant's
		}
		if f.peers.Prefills() || q.known > 0 {
			r.Cached = f.replica.cachedTokens(q.Request)
		}
		if c.ownTexts {
			r.Cached = min(r.Cached, policies.Tokens(q.known*trace.BlockTokens))
			f.texts.learn(q.Prefix, int(c.sim.cfg.KVTokens/trace.BlockTokens)) // as production bounds it
		}
		to := f.peers.Place(c.now(), r, steps[:q.known])
		if to.Replica == "" {
			return i
		}
		at := c.index[to.Replica]
		if c.fronts[at].replica.failed {
			f.peers.MarkGone(to.Replica)
			return i
		}
		return at
	}
	return -1
}

// pickFrom picks a replica of a stage, else of a longer one, else of a shorter one; −1 if all are down
// or were tried.
func (c *cascade) pickFrom(stage int) int {
	for k := stage; k < len(c.plan.Stages); k++ {
		if i := c.robin.Pick(c.members[k], c.weight); i >= 0 {
			return i
		}
	}
	for k := stage - 1; k >= 0; k-- {
		if i := c.robin.Pick(c.members[k], c.weight); i >= 0 {
			return i
		}
	}
	return -1
}

// weight returns a replica's weight in the proxies, 0 if it gets no requests.
func (c *cascade) weight(i int) uint32 {
	f := c.fronts[i]
	if f.down || f.draining || len(c.tried) > 0 && slices.Contains(c.tried, i) {
		return 0
	}
	return f.weight
}

// handle handles an event of Cascade.
func (c *cascade) handle(e event) error {
	switch e.kind {
	case scan:
		c.scan(c.fronts[e.index])
	case summary:
		c.summarise(c.fronts[e.index])
	case message:
		c.deliver(e.arg.(*bidask.Message))
	case deadline:
		c.reachDeadline(c.fronts[e.index])
	case pulled:
		c.endPull(e.arg.(*pull))
	case arrivalsDue:
		c.flushArrivals(int(e.index))
	case planTick:
		return c.tick()
	}
	return nil
}

// countToken counts a token that a replica generated for a request.
func (c *cascade) countToken(r *replica, q *request, e *batch.Event) {
	f, now := c.fronts[r.index], c.sim.now.Seconds()
	switch {
	case q.tokens == 1:
		f.counter.CountArrival(now, q.Input, policies.Tokens(q.cached))
	case q.resumed:
		f.counter.CountPrefill(now, q.length()-1, policies.Tokens(e.Cached))
	}
	if q.tokens == 1 || q.resumed {
		f.ledger.Begin(&q.entry)
	}
	q.resumed = false
	f.counter.CountTokens(now, q.length(), 1)
	f.tokens++
	f.seconds += r.step.Seconds
	if e.Finish == 0 {
		return
	}
	f.counter.CountFinish(now, q.Input, policies.Tokens(q.tokens))
	f.ledger.End(&q.entry, policies.Tokens(q.tokens), true)
	if c.decider != nil {
		c.decider.observeEnd(q)
	}
	if c.priced {
		c.fronts[q.front].peers.ObserveEnd(q.Input, policies.Tokens(q.tokens))
	}
}
