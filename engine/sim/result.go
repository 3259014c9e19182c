package sim

import (
	"cmp"
	"slices"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/engine/replay"
)

// Result is the result of a simulation: what package replay measures of a real run, and what only a
// simulator sees. Percentiles are within a quarter of a per cent.
type Result struct {
	replay.Result
	Seed     uint64 `json:"seed"`
	Replicas int    `json:"replicas"`
	Policy   string `json:"policy"`
	// Attention is the case, Batches what was priced in it.
	Attention string       `json:"attention"`
	Batches   cost.Batches `json:"batches"`
	Events    uint64       `json:"events"`
	Engines   Engines      `json:"engines"`
	// Moves is set for policies that move running requests, and Plans for those that make plans.
	Moves *Moves       `json:"moves,omitempty"`
	Plans []PlanChange `json:"plans,omitempty"`
	// Refined counts the changes of boundaries alone. Plans has the first 2,000 of them.
	Refined uint64 `json:"refined,omitempty"`
}

// Engines are the counters of all engines together.
type Engines struct {
	Iterations       uint64 `json:"iterations"`
	Preemptions      uint64 `json:"preemptions"`
	PromptTokens     uint64 `json:"prompt_tokens"`
	GenerationTokens uint64 `json:"generation_tokens"`
	// PrefixHits of PrefixQueries prompt tokens were found in a prefix cache.
	PrefixQueries uint64 `json:"prefix_queries"`
	PrefixHits    uint64 `json:"prefix_hits"`
	// BusySeconds is the time in iterations; the busiest replica had BusiestSeconds of it.
	BusySeconds    float64 `json:"busy_seconds"`
	BusiestSeconds float64 `json:"busiest_seconds"`
	// Generated are the tokens that each replica has generated, in the order of the replicas.
	Generated []uint64 `json:"generated"`
}

func (e *Engines) add(s batch.Stats) {
	e.Iterations += s.Iterations
	e.Preemptions += s.Preemptions
	e.PromptTokens += s.PromptTokens
	e.GenerationTokens += s.GenerationTokens
	e.PrefixQueries += s.PrefixQueries
	e.PrefixHits += s.PrefixHits
}

// result returns the figures so far.
func (s *Sim) result() Result {
	out := Result{
		Seed: s.cfg.Seed, Replicas: s.cfg.Replicas, Policy: s.cfg.Policy,
		Attention: s.cfg.attentionName(), Batches: s.prices.Batches(), Events: s.events,
	}
	out.Name, out.Target, out.Model, out.Speed = s.cfg.Name, "simulated", s.cfg.Profile.Name, 1
	out.Requests, out.Sent, out.Completed = int(s.read), int(s.read), int(s.ended)
	out.IdleCPU, out.IdleCPUWorst = -1, -1
	out.Interrupted = !s.over()
	for _, f := range s.failures {
		out.Failures = append(out.Failures, *f)
		out.Completed -= f.Count
	}
	slices.SortFunc(out.Failures, func(a, b replay.Failure) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Kind, b.Kind))
	})
	out.Engine = s.stats.Metrics()
	out.Wall = out.Engine
	switch {
	case s.cascade != nil:
		moves := s.cascade.moves()
		out.Moves, out.Plans, out.Refined = &moves, s.plans, s.refined
	case s.central != nil:
		moves := s.central.moves()
		out.Moves = &moves
	}
	for _, r := range s.replicas {
		before := out.Engines.GenerationTokens
		for _, life := range r.lost {
			out.Engines.add(life)
		}
		out.Engines.add(r.scheduler.Stats())
		out.Engines.Generated = append(out.Engines.Generated, out.Engines.GenerationTokens-before)
		out.Engines.BusySeconds += r.busy
		out.Engines.BusiestSeconds = max(out.Engines.BusiestSeconds, r.busy)
	}
	if reuse := s.reuse; reuse.Finish() {
		cv, ok := s.balance.CV()
		if !ok {
			cv = -1
		}
		reuse.AddEngines(int64(out.Engines.PrefixQueries), int64(out.Engines.PrefixHits), cv)
		out.Reuse = &reuse
	}
	return out
}
