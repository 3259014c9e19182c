// Package stageplan plans the stages of a fleet offline, for the requests of a trace, as a control plane would after some
// time of such traffic, and describes the plan. It reads no files and prints nothing.
package stageplan

import (
	"errors"
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/planner"
)

// buckets is the number of length buckets per octave.
const buckets = 8

// Config describes the fleet to divide, and the limits of its stages.
type Config struct {
	Profile  cost.Profile // of a replica with all its ranks
	Replicas int
	Context  policies.Tokens // the model's context
	Policy   string          // see partition.ByName
	Limits   policies.Limits
	// IterationRatio bounds every stage's predicted iteration time, over that of one stage. 0 means no bound, and policy
	// paper has none.
	IterationRatio float64
	StageReplicas  int  // least replicas of a stage
	NoPrefixCache  bool // every prompt counts in full
}

// Workload converts requests into a partitioner's input.
func (c *Config) Workload(requests []trace.Request) (policies.Workload, error) {
	edges := policies.BucketEdges(c.Context, buckets)
	w := policies.Workload{
		Flow: trace.Flow(requests, edges, !c.NoPrefixCache),
		QoE:  c.Profile.QoEModel(), Cost: c.Profile.Cost(), Capacity: c.Profile.Capacity(), Transfer: c.Profile.Transfer(),
		Replicas: c.Replicas, Limits: c.Limits,
	}
	w.Snapshot = trace.InFlight(requests, edges, partition.InFlight(w)) // which only the paper's policy uses
	return w, w.Validate()
}

// partitioner returns the policy with its limits.
func (c *Config) partitioner() (policies.Partitioner, error) {
	p, ok := partition.ByName(c.Policy)
	if !ok {
		return nil, fmt.Errorf("no policy is called %q", c.Policy)
	}
	if limited, ok := p.(adoption.Planner); ok && c.IterationRatio > 0 && c.Policy != planner.PolicyPaper {
		p = adoption.LimitIterationRatio(limited, c.IterationRatio)
	}
	if limited, ok := p.(adoption.Planner); ok && c.StageReplicas > 1 {
		p = adoption.KeepStageReplicas(limited, c.StageReplicas)
	}
	return p, nil
}

// New plans stages for requests from a source.
func New(c Config, requests []trace.Request, source string) (Result, error) {
	w, err := c.Workload(requests)
	if err != nil {
		return Result{}, err
	}
	partitioner, err := c.partitioner()
	if err != nil {
		return Result{}, err
	}
	begin := time.Now()
	part, err := partitioner.Partition(w)
	elapsed := time.Since(begin).Seconds()
	if errors.Is(err, policies.ErrInfeasible) {
		return Result{}, fmt.Errorf("%d replicas of %s cannot carry %.1f requests/s of %s%s: %w; "+
			"add replicas, lower --rate or loosen the limits",
			c.Replicas, c.Profile.Name, trace.Rate(requests), source, needed(w), err)
	}
	if err != nil {
		return Result{}, err
	}
	pricer, ok := partitioner.(partition.Pricer)
	if !ok {
		return Result{}, fmt.Errorf("internal error: policy %q prices no divisions", c.Policy)
	}
	reasons, err := partition.Explain(pricer, w, part.Cuts, part.Counts)
	if err != nil {
		return Result{}, err
	}
	out := describePartition(w, part, reasons)
	out.Source, out.Policy, out.Profile, out.Replicas = source, c.Policy, c.Profile.Name, c.Replicas
	out.Requests, out.Elapsed = len(requests), elapsed
	for _, s := range out.Stages {
		out.Rate += s.Arrivals
	}
	if c.Policy != planner.PolicyPaper {
		quote, err := planner.PricePrefill(partitioner, w)
		if err != nil {
			return Result{}, err
		}
		out.Prefill = describeQuote(quote)
	}
	return out, nil
}

// needed says how many replicas a workload needs at least, and what most of them are for; "" where no number is enough.
func needed(w policies.Workload) string {
	_, needs, err := partition.Flow.Least(w)
	if err != nil {
		return ""
	}
	total, most := 0, partition.Need{}
	for _, n := range needs {
		total += n.Replicas
		if n.Replicas > most.Replicas {
			most = n
		}
	}
	return fmt.Sprintf(", which needs %d replicas (for %s)", total, most.Limit)
}
