package sim

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/policies/planner"
)

// newFleet returns a fleet of Cascade with a link of 1,000,000 tokens/s and 20 ms a migration, and
// stages of one replica each with these cuts, which the planner does not change before 1,000 requests.
func newFleet(t *testing.T, source trace.Source, records *[]replay.Record, cuts ...policies.Tokens) *Sim {
	t.Helper()
	p := profile
	p.LinkRate, p.TransferBase = 1e6*float64(p.KVBytesPerToken), 0.02
	s := testkit.Must(New(Config{Replicas: len(cuts) + 1, Profile: p, Policy: Cascade, Source: source, Record: func(r *replay.Record) { *records = append(*records, *r) }}))
	stages := []policies.Stage{{High: policies.Unbounded, Replicas: []policies.ReplicaID{"r0000"}}}
	for i, cut := range cuts {
		stages[i].High = cut
		stages = append(stages, policies.Stage{Low: cut, High: policies.Unbounded, Replicas: []policies.ReplicaID{policies.ReplicaID(fmt.Sprintf("r%04d", i+1))}})
	}
	s.cascade.adopt(&planner.Change{Stages: stages})
	return s
}

// TestGrowthMoves follows one request over the end of its stage, token by token: what is copied, how
// long it stands still, and that the rest is generated at the other replica.
func TestGrowthMoves(t *testing.T) {
	var records []replay.Record
	s := newFleet(t, &requests{{Input: 500, Output: 2000}}, &records, 1000)
	testkit.Must(s.Run(t.Context()))
	r, m := records[0], s.cascade.moves()
	a, b := s.replicas[0].scheduler.Stats().GenerationTokens, s.replicas[1].scheduler.Stats().GenerationTokens
	// It is offered when it has left the bucket above the cut, at 1,024.
	if len(records) != 1 || r.Tokens != 2000 || a+b != 2000 || a < 524 || a > 560 || m.Moved != 1 || m.Growth != 1 || m.Failed != 0 {
		t.Errorf("%d + %d tokens, %+v, %+v", a, b, r, m)
	}
	if want := policies.Tokens(500 + a); m.Tokens != want {
		t.Errorf("%d tokens were copied, want its length then, %d", m.Tokens, want)
	}
	// One round copies its 1,024 tokens or more in about 1 ms, so that one or two are left.
	if stall := m.StallSeconds; stall < 0.02 || stall > 0.02+3e-6 {
		t.Errorf("it stood still for %v s, want 20 ms and the last tokens", stall)
	}
	p, want := s.cfg.Profile, 0.0
	for length := 501; length < 2500; length++ {
		want += p.D0 + p.D1 + p.D4*float64(length)
	}
	// Its first step elsewhere computes one position; the step in which it stopped was its last here.
	if got := r.Last - r.TTFT; math.Abs(got-want-m.StallSeconds) > 1e-4 {
		t.Errorf("its tokens took %v s, want %v s and %v s of standing still", got, want, m.StallSeconds)
	}
}

// TestNoMoves checks that a request stays in the same fleet without the market, or below the cut.
func TestNoMoves(t *testing.T) {
	var records []replay.Record
	s := newFleet(t, &requests{{Input: 500, Output: 2000}, {Input: 10, Output: 900}}, &records, 1000)
	s.cascade.market = false
	if _, err := s.Run(t.Context()); err != nil || s.cascade.moves().Moved+s.cascade.moves().Offered != 0 || len(records) != 2 {
		t.Errorf("%v, %+v, %d records", err, s.cascade.moves(), len(records))
	}
	records = nil
	s = newFleet(t, &requests{{Input: 10, Output: 900}, {Input: 1200, Output: 10}}, &records, 1000)
	if _, err := s.Run(t.Context()); err != nil || s.cascade.moves().Moved != 0 || len(records) != 2 {
		t.Errorf("%v, %+v, %d records", err, s.cascade.moves(), len(records))
	}
	if a, b := s.replicas[0].scheduler.Stats().GenerationTokens, s.replicas[1].scheduler.Stats().GenerationTokens; a != 900 || b != 10 {
		t.Errorf("%d and %d tokens, want 900 and 10: each in the stage of its length", a, b)
	}
}

// TestCascadeKeepsEveryToken runs Cascade's policies in a small, full fleet: every request gets all its
// tokens, requests move for every cause, and no block is lost or kept.
func TestCascadeKeepsEveryToken(t *testing.T) {
	g, _ := trace.Named("mixed")
	g.Requests, g.Rate, g.Seed = 2500, 30, 5
	mix := testkit.Must(g.Generate())
	mix = slices.DeleteFunc(mix, func(r trace.Request) bool { return r.Input+r.Output > 100_000 })
	var total Moves
	for _, policy := range []string{ByGain, OneStage, WithoutMoves, StaticSplit, Paper, NoPipeline, Chain, RefineQuantity, RefineMemory} {
		t.Run(policy, func(t *testing.T) {
			if policy == RefineQuantity || policy == RefineMemory {
				testkit.SkipSlow(t) // Paper with another refiner, which TestDeterminism runs, too
			}
			source := requests(mix)
			var records []replay.Record
			c := Config{Replicas: 8, Profile: testkit.Must(cost.Builtin("rtxpro6000-llama-3.1-8b")), Policy: policy, KVTokens: 120_000, Source: &source}
			c.Record = func(r *replay.Record) { records = append(records, *r) }
			if policy != OneStage {
				c.KVTokens, c.IterationRatio = 0, -1 // stages
			}
			s := testkit.Must(New(c))
			result := testkit.Must(s.Run(t.Context()))
			checkEnds(t, policy, mix, records)
			checkIdle(t, policy, s)
			var want uint64
			for _, r := range mix {
				want += uint64(r.Output)
			}
			if result.Engines.GenerationTokens != want {
				t.Errorf("%d tokens were generated, want %d", result.Engines.GenerationTokens, want)
			}
			m := s.cascade.moves()
			still := policy == WithoutMoves || policy == StaticSplit
			oneStage := policy == OneStage || policy == NoPipeline || policy == WithoutMoves
			if still != (m.Offered == 0) || oneStage != (len(result.Plans) == 1) || policy == StaticSplit && len(result.Plans) != 2 || len(s.cascade.running) != 0 {
				t.Errorf("%+v, plans %+v, %d transfers", m, result.Plans, len(s.cascade.running))
			}
			if oneStage && m.Growth > 0 {
				t.Errorf("%+v moved for growth in one stage", m)
			}
			total.Growth, total.Outlier, total.Spill = total.Growth+m.Growth, total.Outlier+m.Outlier, total.Spill+m.Spill
			total.Cheaper, total.Failed = total.Cheaper+m.Cheaper, total.Failed+m.Failed
		})
	}
	if total.Growth == 0 || total.Outlier == 0 || total.Cheaper == 0 || total.Spill == 0 || total.Failed == 0 {
		t.Errorf("%+v: the test sees too little", total)
	}
}

// TestFixedStages checks that configured stages stay, with as many replicas as configured, where the
// planner would choose others.
func TestFixedStages(t *testing.T) {
	for _, policy := range []string{Cascade, Paper, GrowthOnly, GrowthRandom} {
		stages := policies.Partition{Cuts: []policies.Tokens{300, 700}, Counts: []int{1, 2, 3}}
		p := profile
		p.D0, p.D4 = 0.002, 1e-6 // an excess of 4,096 tokens makes an outlier
		result, _ := run(t, Config{Replicas: 6, Policy: policy, Stages: stages, Profile: p}, mix(2000, 50, 1))
		last := result.Plans[len(result.Plans)-1]
		if len(result.Plans) != 2 || !slices.Equal(last.Cuts, stages.Cuts) || !slices.Equal(last.Counts, stages.Counts) || result.Moves.Growth == 0 {
			t.Errorf("%s: plans %+v, %+v", policy, result.Plans, result.Moves)
		}
		sum := uint64(0)
		for _, n := range result.Engines.Generated {
			sum += n
		}
		if len(result.Engines.Generated) != 6 || sum != result.Engines.GenerationTokens {
			t.Errorf("%s: the replicas generated %v of %d tokens", policy, result.Engines.Generated, result.Engines.GenerationTokens)
		}
		m := result.Moves
		growthOnly := policy == GrowthOnly || policy == GrowthRandom
		// In stages so small, Cascade has no outlier whose excess is worth a move.
		if policy != Cascade && growthOnly != (m.Outlier+m.Spill == 0) {
			t.Errorf("%s: %+v", policy, m)
		}
	}
}

// TestSlack checks that the planner has the configured slack, the default one or none, and that it does not bind
// policies that plan otherwise.
func TestSlack(t *testing.T) {
	for _, c := range []struct {
		policy string
		slack  float64
		want   planner.Policy
	}{
		{Cascade, 0, testkit.Must(planner.PolicyNamed(planner.PolicyDefault))},
		{Cascade, 0.2, testkit.Must(planner.PolicyNamed(planner.PolicyDefault)).WithSlack(0.2)},
		{WithoutMoves, -1, testkit.Must(planner.PolicyNamed("least-cost"))},
		{Paper, 0.2, testkit.Must(planner.PolicyNamed(planner.PolicyPaper))},
		{OneStage, 0.2, testkit.Must(planner.PolicyNamed(planner.PolicyRoundRobin))},
	} {
		s := testkit.Must(New(Config{Replicas: 2, Profile: profile, Policy: c.policy, Slack: c.slack, Source: &requests{}}))
		if got := s.cascade.planning.Policy; got != c.want {
			t.Errorf("%s with slack %v plans by %+v, want %+v", c.policy, c.slack, got, c.want)
		}
	}
}

// TestManyRefinements checks that a long run lists no more changes of boundaries than the bound, but counts
// them, and lists every other change.
func TestManyRefinements(t *testing.T) {
	var records []replay.Record
	s := newFleet(t, &requests{}, &records, 1000)
	before := len(s.plans)
	for range maxRefinements + 5 {
		s.cascade.adopt(&planner.Change{Decision: planner.Refined, Stages: s.cascade.plan.Stages})
	}
	s.cascade.adopt(&planner.Change{Decision: planner.Repaired, Stages: s.cascade.plan.Stages})
	if r := s.result(); len(r.Plans) != before+maxRefinements+1 || r.Refined != maxRefinements+5 || r.Plans[len(r.Plans)-1].Decision != planner.Repaired {
		t.Errorf("%d plans are listed, %d refinements counted", len(r.Plans), r.Refined)
	}
}

// TestPick checks that picks follow the weights, evenly.
func TestPick(t *testing.T) {
	var records []replay.Record
	s := newFleet(t, &requests{}, &records, 1000, 2000)
	c := s.cascade
	for i, w := range []uint32{balance.NeutralWeight, 25, 200} {
		c.fronts[i].weight = w
	}
	var picks []int
	for range 13 {
		picks = append(picks, c.robin.Pick([]int{0, 1, 2}, c.weight))
	}
	counts := map[int]int{}
	for _, p := range picks {
		counts[p]++
	}
	if counts[0] != 4 || counts[1] != 1 || counts[2] != 8 || slices.Contains([]int{picks[0], picks[1]}, 1) {
		t.Errorf("picks %v", picks)
	}
}

// TestLinksAreShared compares two transfers at once with one.
func TestLinksAreShared(t *testing.T) {
	var records []replay.Record
	s := newFleet(t, &requests{}, &records, 1000)
	from, to := s.replicas[0], s.replicas[1]
	one := &transfer{from: from, to: to}
	from.sending, to.receiving = 1, 1
	if got := s.mover.copyTime(one, 1000); got != time.Millisecond {
		t.Errorf("alone: %v for 1,000 tokens, want 1ms", got)
	}
	to.receiving = 3
	if got := s.mover.copyTime(one, 1000); got != 3*time.Millisecond {
		t.Errorf("one of three: %v, want 3ms", got)
	}
}

// TestSummaries checks what a front end knows of its peers after their summaries: the load, by which it
// places, and under the paper's policy the requests that run on the next stage.
func TestSummaries(t *testing.T) {
	for _, policy := range []string{WithoutMoves, Paper} {
		t.Run(policy, func(t *testing.T) {
			var records []replay.Record
			s := newFleet(t, &requests{}, &records, 1000)
			s.cascade.variant = variants[policy]
			first, second := s.cascade.fronts[0], s.cascade.fronts[1]
			q := &request{Request: trace.Request{Input: 2000, Output: 10}, tokens: 5}
			second.replica.add(q)
			s.cascade.summarise(second)
			s.cascade.scan(first)
			if n := first.peers.CountFresh(s.cascade.now()); n != 1 {
				t.Errorf("the loads of %d peers are known, want 1", n)
			}
			running, replicas := first.peers.Successors(s.cascade.now())
			if want := []policies.Sequence{{Input: 2000, Length: 2005}}; policy == Paper && (!slices.Equal(running, want) || replicas != 1) {
				t.Errorf("%v runs on %d replicas of the next stage, want %v on 1", running, replicas, want)
			} else if policy != Paper && replicas != 0 {
				t.Errorf("%d replicas sent their requests, which only the paper's refiner reads", replicas)
			}
		})
	}
}

// TestBusyFrontForwards checks that a front end without the market places by its own load as scanned, and that
// one that must not forward does not.
func TestBusyFrontForwards(t *testing.T) {
	for _, queued := range []policies.Tokens{0, 100_000} {
		s := testkit.Must(New(Config{Replicas: 2, Profile: profile, Policy: WithoutMoves, Source: &requests{}}))
		c := s.cascade
		if queued > 0 {
			c.fronts[0].replica.add(&request{Request: trace.Request{Input: queued, Output: 1}})
		}
		c.summarise(c.fronts[1])
		c.scan(c.fronts[0])
		c.fronts[1].weight = 0
		if got, want := c.route(&request{Request: trace.Request{Input: 100, Output: 10}}), min(int(queued), 1); got != want {
			t.Errorf("with %d tokens queued the request starts at replica %d, want %d", queued, got, want)
		}
		stays := testkit.Must(New(Config{Replicas: 2, Profile: profile, Policy: WithoutForwards, Source: &requests{}})).cascade
		stays.fronts[0].replica.add(&request{Request: trace.Request{Input: queued, Output: 1}})
		stays.summarise(stays.fronts[1])
		stays.scan(stays.fronts[0])
		stays.fronts[1].weight = 0
		if got := stays.route(&request{Request: trace.Request{Input: 100, Output: 10}}); got != 0 {
			t.Errorf("with %d tokens queued a request that stays starts at replica %d", queued, got)
		}
		c.fronts[1].weight = balance.NeutralWeight
		s.cascade.variant = variants[GrowthRandom]
		if a, b := c.route(&request{}), c.route(&request{}); a+b != 1 {
			t.Errorf("requests start at replicas %d and %d, want one after the other", a, b)
		}
	}
}

// TestMeasuredReplica compares what a trader learns of a replica with the replica.
func TestMeasuredReplica(t *testing.T) {
	var records []replay.Record
	s := newFleet(t, &requests{}, &records)
	f := s.cascade.fronts[0]
	q := &request{Request: trace.Request{Input: 1000, Output: 10}, index: 7, epoch: 2, since: 5}
	s.submit(q, 0)
	s.endIteration(f.replica)
	m := s.cascade.measure(f)
	// 1,000 tokens of the prompt fill 63 blocks of 16, which also hold the first generated one.
	if m.Load.KV() != 63*16 || m.Load.Held != 1001 || m.KVCapacity() != s.cfg.KVTokens {
		t.Errorf("%d of %d tokens are in use, %d held; want %d of %d and 1001", m.Load.KV(), m.KVCapacity(), m.Load.Held, 63*16, s.cfg.KVTokens)
	}
	residents := s.cascade.listResidents(f.replica.resident)
	if len(residents) != 1 || residents[0].Request != (policies.Request{ID: "7", Input: 1000, Output: 1}) || residents[0].Epoch != 2 || residents[0].Since != 5 {
		t.Errorf("residents %+v", residents)
	}
}
