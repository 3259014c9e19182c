package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/policies/prefillpool"
	"github.com/cascadeinfer/cascade/xds/control"
)

// planBuckets is the number of length buckets per octave in offline planning.
const planBuckets = 8

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
		Args: exactArgs(0),
		RunE: func(*cobra.Command, []string) error { return s.plan(src, p) },
	}
	src.flags(c, 20000)
	f := c.Flags()
	f.StringVar(&p.profile, "profile", "h200-llama-3.1-8b", "cost profile: built-in name or JSON file (see \"cascade profile list\")")
	f.IntVar(&p.replicas, "replicas", 8, "replicas to divide")
	f.StringVar(&p.policy, "policy", planner.PolicyDefault, "default (what a fleet runs), least-cost, recursion, two-phase (all on flows) or paper (two-phase on a snapshot)")
	f.Int64Var(&p.context, "context", 131072, "the model's context; longer requests of the trace are dropped")
	f.IntVar(&p.tp, "tp", 1, "tensor-parallel ranks of each replica")
	f.IntVar(&p.stages, "stages", policies.MaxStages, "most stages")
	f.DurationVar(&p.iteration, "iteration", 0, "bound on every stage's predicted iteration time; 0 is none")
	f.Float64Var(&p.ratio, "iteration-ratio", planner.DefaultIterationRatio, "bound on it, over that of one stage (planner.iteration_ratio); 0 is none. Policy paper has none")
	f.Float64Var(&p.pooling, "pooling", 0, "head room of small stages: k ≥ u + pooling·√u")
	f.Float64Var(&p.linkGbps, "link-gbps", 0, "link between replicas, in Gbit/s, for migrations; 0 keeps the profile's")
	f.BoolVar(&p.noPrefixCache, "no-prefix-cache", false, "count every prompt in full, even where the trace has shared prefixes")
	completeFrom(c, "profile", cost.Names())
	completeFrom(c, "policy", partition.Names())
	f.StringVar(&p.plot, "plot", "", "write a picture of the plan to this file (.svg or .png)")
	c.AddCommand(newPlanHistory(s), newPlanPin(s), newPlanUnpin(s), newPlanRollback(s), newPlanRepair(s))
	return c
}

// planResult is the result of "cascade plan".
type planResult struct {
	Source   string        `json:"source"`
	Policy   string        `json:"policy"`
	Profile  string        `json:"profile"`
	Replicas int           `json:"replicas"`
	Requests int           `json:"requests"`
	Rate     float64       `json:"requests_per_second"`
	Cost     float64       `json:"cost"`
	OneStage *float64      `json:"one_stage_cost"` // null: one stage cannot carry the load
	Exact    bool          `json:"exact"`
	Elapsed  float64       `json:"elapsed_seconds"`
	Stages   []stageResult `json:"stages"`
	// Prefill is what prefill replicas would cost and save; absent with policy paper, which
	// prices no flows.
	Prefill   *prefillResult `json:"prefill,omitempty"`
	plan      policies.Plan
	partition policies.Partition
}

// stageResult is one row of the plan.
type stageResult struct {
	Low       policies.Tokens  `json:"low"`
	High      *policies.Tokens `json:"high"` // null: the stage has no upper bound
	Replicas  int              `json:"replicas"`
	Arrivals  float64          `json:"arrivals_per_second"`
	Generated float64          `json:"tokens_per_second"`
	Work      float64          `json:"busy_replicas"` // in replicas, before the fixed cost of iterations
	Iteration float64          `json:"iteration_seconds,omitempty"`
	// Reason is why the stage exists, by the prices of the policy.
	Reason *control.StageReason `json:"reason,omitempty"`
}

// prefillResult is the price of prefill replicas beside that of none.
type prefillResult struct {
	Moved   float64         `json:"moved_per_second"` // requests whose prompts they would compute
	Pays    bool            `json:"pays"`
	Gain    float64         `json:"gain"` // share of the cost that the best number saves
	Best    int             `json:"best"` // prefill replicas
	Options []prefillOption `json:"options"`
}

// prefillOption is one number of prefill replicas. A cost is null where the replicas cannot
// carry the load so.
type prefillOption struct {
	Prefill     int      `json:"prefill_replicas"`
	Stages      int      `json:"stages"`
	Utilisation float64  `json:"utilisation"`
	Decode      float64  `json:"decode"`
	Wait        float64  `json:"wait"`
	Move        float64  `json:"move"`
	Cost        *float64 `json:"cost"`
}

// describeQuote returns the prices of prefill replicas.
func describeQuote(q prefillpool.Quote) *prefillResult {
	out := &prefillResult{Moved: q.Moved, Pays: q.Pays(), Gain: q.Gain(), Best: q.Options[q.Best].Prefill}
	for _, o := range q.Options {
		row := prefillOption{Prefill: o.Prefill, Stages: o.Stages, Utilisation: o.Utilisation, Decode: o.Decode, Wait: o.Wait, Move: o.Move}
		if !math.IsInf(o.Cost, 1) {
			row.Cost = &o.Cost
		} else {
			row.Decode, row.Wait, row.Move = 0, 0, 0
		}
		out.Options = append(out.Options, row)
	}
	return out
}

// notes says whether prefill replicas pay for a fleet of so many replicas, and why.
func (r *prefillResult) notes(replicas int) []string {
	if r.Moved == 0 {
		return []string{fmt.Sprintf("Prefill replicas do not pay: no bucket of prompts has %d uncached tokens on average.", place.MinUncached)}
	}
	notes := []string{"Without prefill replicas: " + r.Options[0].describe() + "."}
	split := r.bestSplit()
	if split == nil {
		return append(notes, "Prefill replicas do not pay: the other replicas could not carry this load.")
	}
	notes = append(notes, fmt.Sprintf("With %d of %d, %.0f %% busy, for %.2f requests/s: %s.", split.Prefill, replicas, 100*split.Utilisation, r.Moved, split.describe()))
	switch {
	case r.Pays:
		return append(notes, fmt.Sprintf("Prefill replicas: %d of %d would save %.0f %%.", split.Prefill, replicas, 100*r.Gain))
	case r.Best == 0:
		return append(notes, "Prefill replicas do not pay: none is cheaper.")
	}
	return append(notes, fmt.Sprintf("Prefill replicas do not pay: %d of %d would save %.1f %%, and less than %.0f %% is within the model's error.", split.Prefill, replicas, 100*r.Gain, 100*prefillpool.MinGain))
}

// bestSplit returns the cheapest option with prefill replicas, even if none at all is cheaper. It
// returns nil if no such option can carry the load.
func (r *prefillResult) bestSplit() (best *prefillOption) {
	for i := range r.Options {
		if o := &r.Options[i]; o.Prefill > 0 && o.Cost != nil && (best == nil || *o.Cost < *best.Cost) {
			best = o
		}
	}
	return best
}

// describe returns the option's cost and its parts.
func (o prefillOption) describe() string {
	if o.Cost == nil {
		return "cannot carry this load"
	}
	return fmt.Sprintf("%.4g requests in the system: %.4g generate, %.3g wait for their first token, %.3g move", *o.Cost, o.Decode, o.Wait, o.Move)
}

func (s *settings) plan(src *traceFlags, p *planFlags) error {
	requests, name, err := src.readWithin(p.context)
	if err != nil {
		return err
	}
	w, err := p.workload(requests)
	if err != nil {
		return err
	}
	partitioner, ok := partition.ByName(p.policy)
	if !ok {
		return fmt.Errorf("--policy %q: must be one of %s", p.policy, strings.Join(partition.Names(), ", "))
	}
	if limited, ok := partitioner.(adoption.Planner); ok && p.ratio > 0 && p.policy != planner.PolicyPaper {
		partitioner = adoption.LimitIterationRatio(limited, p.ratio)
	}
	if p.ratio != 0 && p.ratio < 1 {
		return fmt.Errorf("--iteration-ratio %g: must be at least 1, or 0 for none", p.ratio)
	}
	begin := time.Now()
	part, err := partitioner.Partition(w)
	elapsed := time.Since(begin).Seconds()
	if errors.Is(err, policies.ErrInfeasible) {
		return fmt.Errorf("%d replicas of %s cannot carry %.1f requests/s of %s: %w; add replicas, lower --rate or loosen the limits",
			p.replicas, p.profile, trace.Rate(requests), name, err)
	}
	if err != nil {
		return err
	}
	pricer, ok := partitioner.(partition.Pricer)
	if !ok {
		return fmt.Errorf("--policy %q: internal error: it prices no divisions", p.policy)
	}
	reasons, err := partition.Explain(pricer, w, part.Cuts, part.Counts)
	if err != nil {
		return err
	}
	out := describePartition(w, part, reasons)
	out.Source, out.Policy, out.Profile, out.Replicas = name, p.policy, p.profile, p.replicas
	out.Requests, out.Rate, out.Elapsed = len(requests), trace.Rate(requests), elapsed
	if p.policy != "paper" {
		quote, err := prefillpool.Price(partitioner, w)
		if err != nil {
			return err
		}
		out.Prefill = describeQuote(quote)
	}
	if p.plot != "" {
		if err := drawPlan(p.plot, out.plan, requests); err != nil {
			return err
		}
	}
	return s.printTable(out, out.table())
}

// workload converts the requests into a partitioner's input.
func (p *planFlags) workload(requests []trace.Request) (policies.Workload, error) {
	fleet := config.Fleet{Speed: 1, Models: []config.Model{{Name: "plan", Profile: p.profile, Context: policies.Tokens(p.context)}}}
	ps, err := fleet.Profiles(".")
	if err != nil {
		return policies.Workload{}, nameFlag(err)
	}
	profile := ps["plan"].TensorParallel(p.tp)
	if p.linkGbps > 0 {
		profile.LinkRate = p.linkGbps * 1e9 / 8
	}
	edges := policies.BucketEdges(policies.Tokens(p.context), planBuckets)
	w := policies.Workload{
		Flow: trace.Flow(requests, edges, !p.noPrefixCache),
		QoE:  profile.QoEModel(), Cost: profile.Cost(), Capacity: profile.Capacity(), Transfer: profile.Transfer(), Replicas: p.replicas,
		Limits: policies.Limits{Stages: p.stages, Iteration: p.iteration.Seconds(), Pooling: p.pooling},
	}
	w.Snapshot = trace.InFlight(requests, edges, partition.InFlight(w)) // which only the paper's policy uses
	return w, w.Validate()
}

// describePartition returns the stages of a partition with their share of the
// flow.
func describePartition(w policies.Workload, part policies.Partition, reasons []partition.StageReason) planResult {
	out := planResult{Cost: part.Cost, Exact: part.Exact, partition: part}
	if !math.IsInf(part.OneStage, 1) {
		out.OneStage = &part.OneStage
	}
	out.plan = policies.Plan{Model: "plan"}
	id := 0
	for i, n := range part.Counts {
		st := policies.Stage{Low: 0, High: policies.Unbounded}
		if i > 0 {
			st.Low = part.Cuts[i-1]
		}
		if i < len(part.Cuts) {
			st.High = part.Cuts[i]
		}
		for range n {
			st.Replicas = append(st.Replicas, policies.ReplicaID(fmt.Sprintf("r%d", id)))
			id++
		}
		out.plan.Stages = append(out.plan.Stages, st)
		row := stageResult{Low: st.Low, Replicas: n, Reason: control.ReasonOf(reasons[i])}
		if st.High != policies.Unbounded {
			row.High = &st.High
		}
		for b, e := range w.Flow.Edges {
			if e >= st.Low && e < st.High {
				row.Arrivals += w.Flow.Arrivals[b]
				row.Generated += w.Flow.Tokens[b]
				row.Work += w.Cost.D1*w.Flow.Tokens[b] + w.Cost.D4*w.Flow.Reads[b] + w.Cost.D2*w.Flow.Prefill[b] + w.Cost.D3*w.Flow.Prefill2[b]
			}
		}
		if part.Iterations != nil {
			row.Iteration = part.Iterations[i]
		}
		out.Stages = append(out.Stages, row)
	}
	return out
}

func (p planResult) table() report.Table {
	t := report.Table{
		Title:  fmt.Sprintf("%s: %d requests, %.2f/s on %d replicas of %s", p.Source, p.Requests, p.Rate, p.Replicas, p.Profile),
		Header: []string{"stage", "lengths", "why", "replicas", "arrivals/s", "tokens/s", "utilisation", "iteration"}, Left: 3,
	}
	for i, st := range p.Stages {
		high := policies.Unbounded
		if st.High != nil {
			high = *st.High
		}
		t.Rows = append(t.Rows, []string{fmt.Sprintf("s%d", i), fmt.Sprintf("[%v, %v)", st.Low, high), describeReason(st.Reason), fmt.Sprint(st.Replicas),
			fmt.Sprintf("%.2f (%s)", st.Arrivals, percentage(st.Reason.Requests)), fmt.Sprintf("%.0f (%s)", st.Generated, percentage(st.Reason.Tokens)),
			fmt.Sprintf("%.0f %%", 100*st.Work/float64(st.Replicas)), fmt.Sprintf("%.1f ms", st.Iteration*1e3)})
	}
	note := fmt.Sprintf("Cost %.4g", p.Cost)
	if p.OneStage != nil {
		note += fmt.Sprintf(", in one stage %.4g: a predicted gain of %.1f %%", *p.OneStage, 100*(1 - p.Cost / *p.OneStage))
	} else {
		note += "; one stage could not carry this load"
	}
	proof := "not proven optimal"
	switch {
	case p.Exact && p.Policy == planner.PolicyDefault:
		proof = fmt.Sprintf("proven optimal for its model but for up to %g %% that it gives up for fewer stages", 100*partition.DefaultSlack)
	case p.Exact:
		proof = "proven optimal for its model"
	}
	t.Notes = []string{note + "." + p.adoptionNote(), fmt.Sprintf("Policy %s, %s; planned in %.2f ms.", p.Policy, proof, p.Elapsed*1e3)}
	if p.Prefill != nil {
		t.Notes = append(t.Notes, p.Prefill.notes(p.Replicas)...)
	}
	return t
}

// adoptionNote says whether a fleet in one stage would adopt the plan; "" for plans of one stage, and for
// policies whose plans are adopted by other rules.
func (p planResult) adoptionNote() string {
	if len(p.Stages) < 2 || p.OneStage == nil || p.Policy != planner.PolicyDefault && p.Policy != "least-cost" {
		return ""
	}
	if 1 - p.Cost / *p.OneStage < adoption.DefaultSplitGain {
		return fmt.Sprintf(" A fleet in one stage stays in it for less than %.0f %%.", 100*adoption.DefaultSplitGain)
	}
	return fmt.Sprintf(" A fleet in one stage is divided for %.0f %% or more.", 100*adoption.DefaultSplitGain)
}

// drawPlan writes the plot in the format of the file's extension.
func drawPlan(path string, plan policies.Plan, requests []trace.Request) error {
	lengths := make([]policies.Tokens, len(requests))
	for i, r := range requests {
		lengths[i] = r.Input + r.Output
	}
	pic, err := report.Plan(plan, lengths)
	if err != nil {
		return err
	}
	return writePicture(path, pic)
}

// writePicture writes a plot to a .svg or .png file.
func writePicture(path string, pic report.Picture) (err error) {
	format := report.Format(strings.TrimPrefix(filepath.Ext(path), "."))
	if format != report.SVG && format != report.PNG {
		return fmt.Errorf("%s: a picture's file ends in .svg or .png", path)
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return pic.Write(f, format)
}
