package sim

import (
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/planner"
)

// The control plane's settings besides the planner's defaults, as in production at speed 1.
const (
	tickInterval   = 250 * time.Millisecond
	ticksPerReport = 4 // a report and new weights come every so many ticks
	paperPeriod    = time.Minute
	poolingFactor  = 0.3
	maxRefinements = 2000 // that are listed in a Result
)

// planView is what the control plane knows, and when it learnt it.
type planView struct {
	planner.View
	ticks int
}

// period is the time between two plans.
func (v variant) period() time.Duration {
	if v.paper {
		return paperPeriod
	}
	return time.Duration(planner.DefaultPeriod) * time.Microsecond
}

// window is the time constant with which flows are forgotten.
func (v variant) window() time.Duration {
	if v.paper {
		return paperPeriod
	}
	return flowWindow
}

// iterationRatio is what stages may cost the longest requests, if the configuration says most.
func (v variant) iterationRatio(most float64) float64 {
	if v.paper {
		return 0
	}
	return most
}

// minSeen is how many requests must come before the first stages.
func (v variant) minSeen() uint64 {
	if v.paper {
		return 1
	}
	return planner.DefaultSeen
}

// PlanChange is a plan that came into force.
type PlanChange struct {
	Seconds  float64 `json:"seconds"`
	Decision string  `json:"decision"`
	Reason   string  `json:"reason"`
	// Gain is the predicted gain, as a share of the cost of the plan before; 0 where nothing was compared.
	Gain   float64           `json:"gain"`
	Cuts   []policies.Tokens `json:"cuts"`
	Counts []int             `json:"counts"`
}

// adoptionRule returns which proposals of the planner come into force.
func (c *cascade) adoptionRule() adoption.Rule {
	switch {
	case c.paper:
		return adoption.Always
	case c.priced && !c.byGain:
		return adoption.IfNeeded
	}
	return adoption.ByGain
}

// startPlanning makes the planner and the first plan.
func (c *cascade) startPlanning() error {
	policy, err := planner.PolicyNamed(c.variant.planner)
	if err != nil {
		return fmt.Errorf("simulate: %w", err)
	}
	if slack := c.sim.cfg.Slack; slack != 0 && c.variant.planner == planner.PolicyDefault {
		policy = policy.WithSlack(max(0, slack))
	}
	p := c.sim.cfg.Profile
	c.planning = planner.Config{
		Model: modelName, Context: min(maxContext, c.sim.cfg.KVTokens), Edges: c.edges, QoE: p.QoEModel(), Cost: p.Cost(), Transfer: p.Transfer(),
		Limits: policies.Limits{Stages: policies.MaxStages, Pooling: poolingFactor},
		Policy: policy, Speed: 1, Period: policies.Micros(c.period().Microseconds()), Grace: planner.DefaultGrace, Seen: c.minSeen(),
		Refine: c.paper && !c.fixed(), Adopt: c.adoptionRule(),
		IterationRatio: c.iterationRatio(c.sim.cfg.IterationRatio),
	}
	if c.plans, err = planner.New(c.planning); err != nil {
		return fmt.Errorf("simulate: %w", err)
	}
	c.view.Grace, c.view.HalfLife = planner.DefaultGrace, planner.DefaultHalfLife
	c.report()
	change, _ := c.plans.Repair(0, &c.view.View)
	if change == nil {
		return fmt.Errorf("simulate: internal error: no first plan")
	}
	c.adopt(change)
	if c.fixed() {
		c.layOut(c.sim.cfg.Stages, "fixed stages")
	}
	return nil
}

// fixed reports whether the stages are configured.
func (c *cascade) fixed() bool { return len(c.sim.cfg.Stages.Counts) > 0 }

// layOut puts a division in force that no planner has chosen.
func (c *cascade) layOut(stages policies.Partition, reason string) {
	c.adopt(&planner.Change{Decision: planner.Adopted, Reason: reason, Stages: c.plans.Revive(&c.view.View, stages).Stages})
}

// layOutChain puts the chain in force, once as many requests have come as Cascade waits for.
func (c *cascade) layOutChain() error {
	c.view.AddToPeriod(c.edges, &c.observed)
	w := policies.Workload{
		QoE: c.planning.QoE, Cost: c.planning.Cost, Transfer: c.planning.Transfer, Limits: c.planning.Limits,
		Replicas: len(c.replicas), Capacity: c.replicas[0].Capacity, Flow: c.view.StageFlow(c.edges),
	}
	if w.Flow.Seen < planner.DefaultSeen {
		return nil
	}
	w.Snapshot = c.observed.Batches(c.edges, partition.InFlight(w))
	chain, err := partition.TwoPhase{Objective: partition.Snapshot}.Chain(w)
	if err != nil {
		return fmt.Errorf("simulate: chain: %w", err)
	}
	c.chained = true
	c.layOut(chain, "one replica for each stage")
	return nil
}

// replyToReports gives each front end what the reply to its report says: about its stage, and which
// prompts the prefill replicas are meant for.
func (c *cascade) replyToReports() {
	for _, f := range c.fronts {
		if !c.allLengths {
			f.peers.SetPrefillRanges(c.plans.PrefillRanges())
		}
		mean, ok := c.plans.MeanHeld(f.stage)
		f.mean, f.meanKnown = policies.Tokens(mean), ok && !f.replica.failed
	}
}

// pin keeps configured stages, which a repair may have merged.
func (c *cascade) pin() *planner.Pin {
	if !c.fixed() {
		return nil
	}
	return &planner.Pin{Former: c.sim.cfg.Stages}
}

// mayReplan reports whether the planner may choose another division than the present one.
func (c *cascade) mayReplan() bool {
	return !c.chain && !(c.static && len(c.plan.Stages) > 1)
}

// tick measures the stages, four times a second; every second the replicas report and get new weights;
// at the end of a period the planner decides.
func (c *cascade) tick() error {
	if c.view.ticks++; c.view.ticks%ticksPerReport == 0 {
		c.report()
		if !c.blind {
			c.weigh()
		}
		if c.paper {
			c.refine()
		}
	}
	c.plans.Tick(&c.view.View)
	if c.view.ticks%ticksPerReport == 0 {
		c.replyToReports()
	}
	if c.repairAgain {
		c.repair()
	}
	if c.chain && !c.chained {
		if err := c.layOutChain(); err != nil {
			return err
		}
	}
	now := c.now()
	if c.plans.PeriodDue(now) && c.mayReplan() {
		if r := c.plans.Replan(now, &c.view.View, c.pin()); r.Change != nil && r.Change.Stages != nil {
			c.adopt(r.Change)
		}
	}
	c.sim.queue.push(event{at: c.sim.now + tickInterval, kind: planTick})
	return nil
}

// report fills the view with the replicas' loads and flows.
func (c *cascade) report() {
	c.view.Reset()
	for i, f := range c.fronts {
		if !f.replica.failed {
			load := f.replica.load()
			if f.tokens > 0 {
				load.Iteration = f.seconds / f.tokens
				f.ledger.SetIteration(load.Iteration)
			}
			f.tokens, f.seconds = 0, 0
			f.reportedAt, f.reported = c.now(), planner.ReplicaView{
				Replica: c.replicas[i], Reported: true, Load: load, Flow: f.counter.Rates(c.sim.now.Seconds()),
				Snapshot: c.snapshot(f), Proposal: f.proposal,
			}
		}
		r := f.reported
		r.Age = c.now() - f.reportedAt
		f.describe(&r)
		c.view.Replicas = append(c.view.Replicas, r)
	}
}

// snapshot returns a replica's requests in flight by bucket, which only the paper plans on.
func (c *cascade) snapshot(f *front) []policies.Batch {
	if !c.paper {
		return nil
	}
	out := make([]policies.Batch, len(c.edges))
	for _, q := range f.replica.resident {
		b := policies.BucketOf(c.edges, q.length())
		out[b] = out[b].Add(q.Input, q.length())
	}
	return out
}

// refine puts the boundaries in force on which the replicas agree, and lets them propose the next ones.
func (c *cascade) refine() {
	if r := c.plans.Refine(&c.view.View); r.Change != nil && r.Change.Stages != nil {
		c.adopt(r.Change)
	}
	refiner := c.refiner
	if refiner == nil {
		refiner = partition.PaperRefiner{}
	}
	for _, f := range c.fronts {
		f.proposal = partition.BoundaryProposal{}
		b := c.plans.Boundary(f.stage)
		if b == nil {
			continue
		}
		next, known := f.peers.Successors(c.now())
		view, ok := b.View(sequences(f.replica), next, known, c.sim.cfg.Profile.QoEModel())
		if !ok {
			continue
		}
		f.proposal = partition.BoundaryProposal{Epoch: b.Epoch, Low: b.Low, Boundary: refiner.Refine(view)}
	}
}

// weigh computes the proxies' weights.
func (c *cascade) weigh() {
	for _, stage := range c.plan.Stages {
		members := make([]balance.Member, 0, len(stage.Replicas))
		for _, id := range stage.Replicas {
			f := c.frontOf(id)
			load := f.replica.load()
			members = append(members, balance.Member{ID: id, Work: load.Held + load.Promised, KV: c.sim.cfg.KVTokens, Known: !f.down && !f.draining, Weight: f.weight})
		}
		for id, w := range balance.NextWeights(members) {
			c.frontOf(id).weight = w
		}
	}
}

// adopt puts a plan in force, at once for everyone. It moves no request.
func (c *cascade) adopt(change *planner.Change) {
	c.plan = policies.Plan{Model: modelName, Epoch: c.plan.Epoch + 1, Stages: change.Stages}
	done := PlanChange{Seconds: c.sim.now.Seconds(), Decision: change.Decision, Reason: change.Reason, Gain: change.Gain}
	for _, f := range c.fronts {
		f.stage = -1 // those that drain
	}
	c.members = make([][]int, len(c.plan.Stages))
	for k, stage := range c.plan.Stages {
		done.Counts = append(done.Counts, len(stage.Replicas))
		if k > 0 {
			done.Cuts = append(done.Cuts, stage.Low)
		}
		for _, id := range stage.Replicas {
			c.frontOf(id).stage = k
			c.members[k] = append(c.members[k], c.index[id])
		}
	}
	for i, f := range c.fronts {
		c.view.Replicas[i].Stage = f.stage
	}
	for _, f := range c.fronts {
		f.peers.SetView(c.plan, c.replicas)
	}
	c.plans.SetPlan(&c.view.View, c.plan)
	if done.Decision == planner.Refined {
		if c.sim.refined++; c.sim.refined > maxRefinements {
			return // a long run refines each second
		}
	}
	c.sim.plans = append(c.sim.plans, done)
}
