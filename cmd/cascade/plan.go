package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/stageplan"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/planner"
)

// planFlags are the flags of "cascade plan" besides the source of requests.
type planFlags struct {
	profile       string
	replicas      int
	policy        string
	context       int64
	tp            int
	stages        int
	iteration     time.Duration
	ratio         float64
	pooling       float64
	stageReplicas int
	plot          string
	linkGbps      float64
	noPrefixCache bool
}

// newPlan is "cascade plan": it computes the stages for a trace.
func newPlan(s *settings) *cobra.Command {
	src, p := &traceFlags{}, &planFlags{}
	c := &cobra.Command{
		Use:   "plan",
		Short: "Plan stages offline for a trace or a mix; show, pin and roll back the plans of a running fleet",
		Long: `Plan reads a trace (or generates a mix), computes its flows by length bucket and
divides the given number of replicas into stages, as the control plane would after
some time of this traffic. It prints each stage's range, replicas, load and
predicted iteration time, why the stage exists (what the plan would cost if it were merged
with a neighbour), and what the same traffic costs in one stage.

The cost is the predicted number of requests in the system (Little's law), or the
paper's QoE with --policy paper. "least-cost" is proven optimal for its model; "default" is
proven to have the fewest stages within 1 % of that, and to be the cheapest of those.

It also prices prefill replicas (role: prefill in the fleet file), which compute long
prompts for the others, and says whether they would pay.

Its subcommands are about the plans of a running control plane.`,
		Example: `  cascade plan --mix mixed --rate 12 --replicas 8 --profile rtxpro6000-llama-3.1-8b
  cascade plan --trace conversation_trace.jsonl --spread 3s --replicas 16 --plot plan.svg
  cascade plan --trace azure.csv --replicas 8 --policy two-phase --json`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if p.replicas < 1 {
				return cli.Usagef(cmd, "--replicas %d: at least 1", p.replicas)
			}
			return s.plan(src, p)
		},
	}
	src.flags(c, 20000)
	f := c.Flags()
	f.StringVar(&p.profile, "profile", "h200-llama-3.1-8b", "cost profile: built-in name or JSON file (see \"cascade profile\")")
	f.IntVar(&p.replicas, "replicas", 8, "replicas to divide")
	f.StringVar(&p.policy, "policy", planner.PolicyDefault, "default (what a fleet runs), least-cost, recursion, two-phase (all on flows) or paper (two-phase on a snapshot)")
	f.Int64Var(&p.context, "context", 131072, "the model's context; longer requests of the trace are dropped")
	f.IntVar(&p.tp, "tp", 1, "tensor-parallel ranks of each replica")
	f.IntVar(&p.stages, "stages", policies.MaxStages, "most stages")
	f.DurationVar(&p.iteration, "iteration", 0, "bound on every stage's predicted iteration time; 0 is none")
	f.Float64Var(&p.ratio, "iteration-ratio", planner.DefaultIterationRatio, "bound on it, over that of one stage (planner.iteration); 0 is none. Policy paper has none")
	f.IntVar(&p.stageReplicas, "stage-replicas", 1, "least replicas of a stage (planner.stage_replicas)")
	f.Float64Var(&p.pooling, "pooling", 0, "head room of small stages: k ≥ u + pooling·√u")
	f.Float64Var(&p.linkGbps, "link-gbps", 0, "link between replicas, in Gbit/s, for migrations; 0 keeps the profile's")
	f.BoolVar(&p.noPrefixCache, "no-prefix-cache", false, "count every prompt in full, even where the trace has shared prefixes")
	cli.CompleteFrom(c, "profile", cost.Names())
	cli.CompleteFrom(c, "policy", partition.Names())
	f.StringVar(&p.plot, "plot", "", "write a picture of the plan to this file (.svg)")
	c.AddCommand(newPlanHistory(s), newPlanPin(s), newPlanRollback(s), newPlanRepair(s))
	return c
}

func (s *settings) plan(src *traceFlags, p *planFlags) error {
	if _, ok := partition.ByName(p.policy); !ok {
		return fmt.Errorf("--policy %q: must be one of %s", p.policy, strings.Join(partition.Names(), ", "))
	}
	if p.ratio != 0 && p.ratio < 1 {
		return fmt.Errorf("--iteration-ratio %g: must be at least 1, or 0 for none", p.ratio)
	}
	requests, name, err := src.readWithin(p.context)
	if err != nil {
		return err
	}
	c, err := p.config()
	if err != nil {
		return err
	}
	out, err := stageplan.New(c, requests, name)
	if err != nil {
		return err
	}
	if p.plot != "" {
		pic, err := out.Picture(requests)
		if err == nil {
			err = writePicture(p.plot, pic)
		}
		if err != nil {
			return err
		}
	}
	return s.PrintTable(out, out.Table())
}

// config returns the fleet that the flags describe.
func (p *planFlags) config() (stageplan.Config, error) {
	model := config.Model{Name: "plan", Profile: p.profile, Context: policies.Tokens(p.context)}
	fleet, err := resolveFlags(config.Fleet{
		Speed: 1, Models: []config.Model{model}, Replicas: []config.Replica{flagReplica("plan", p.tp)},
	})
	if err != nil {
		return stageplan.Config{}, err
	}
	profile := fleet.Profiles[model.Name].TensorParallel(p.tp)
	profile.Name = p.profile
	if p.linkGbps > 0 {
		profile.LinkRate = p.linkGbps * 1e9 / 8
	}
	return stageplan.Config{
		Profile: profile, Replicas: p.replicas, Context: policies.Tokens(p.context), Policy: p.policy,
		Limits:         policies.Limits{Stages: p.stages, Iteration: p.iteration.Seconds(), Pooling: p.pooling},
		IterationRatio: p.ratio, StageReplicas: p.stageReplicas, NoPrefixCache: p.noPrefixCache,
	}, nil
}
