package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/progress"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/engine/sim"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/policies"
)

// simFlags are the flags of "cascade sim" beside those of the trace.
type simFlags struct {
	policies    []string
	replicas    int
	profile     string
	tp          int
	attention   string
	skew        string
	kvTokens    int64
	batch       int
	noCache     bool
	admission   bool
	prefill     int
	stages      string
	proxies     int
	reportEvery time.Duration
	reportDelay time.Duration
	healthDelay time.Duration
	fail, drain []string
	slow        []string
	skipInvalid bool
	out         string
}

// newSim is "cascade sim": it simulates fleets in virtual time.
func newSim(s *settings) *cobra.Command {
	src, e := &traceFlags{}, &simFlags{}
	c := &cobra.Command{
		Use:   "sim",
		Short: "Simulate a fleet in virtual time: routers and Cascade compared on any trace, hundreds of replicas in seconds",
		Long: `Sim replays the requests of a trace (or of a generated mix) on a simulated fleet and reports
what clients would see, with the tables of "cascade replay". Every replica runs the
emulator's scheduler (continuous batching, chunked prefill, prefix cache, preemption) at
the times of a cost profile. The same flags and seed give the same bytes.

Policies, one or several with --policy. Routers that users would pick:
  round-robin   one replica after the other
  least-load    the least KV in use and promised, as the replicas report it (--report-every,
                --report-delay), with what this proxy has sent since
  power-of-two  of two random replicas the one with fewer requests of this proxy (Envoy's
                LEAST_REQUEST)
  prefix-hash   the same replica for the same beginning of a prompt, whatever its load
  prefix-tree   the replica that has seen most of the prompt, unless the replicas' requests
                differ by more than 64 and by half (cache_aware of sglang-router and
                vllm-router)
  lmetric       the least product of the prompt tokens to compute and the requests there; it and
                llm-d see what each replica has cached at this moment
  llm-d         the best sum of three scores: cached prompt, short queue, free KV (3, 2, 2)
Schedulers that move running requests:
  llumnix           Llumnix: a central scheduler sends requests where the most tokens are free
                    for each, and moves the shortest ones away before a replica's memory ends
  llumnix-balanced  the same without a threshold: it balances the loads all the time
  prefill-decode    --prefill replicas compute prompts, the others generate
Cascade, by the packages that production runs (proxies pick by weights, front ends place by
price and cached prefixes, prefixes and running requests are copied over the profile's link,
the control plane plans from the flow that it counts, and running requests are sold by bid
and ask):
  cascade           placement, prefix pulls and moves; stages if one is over its limits
  one-stage         the same without stages
  without-moves     running requests stay
  without-pull      prefixes that a replica lacks are computed again
  placement-only    neither moves nor pulls: only where a request starts is decided
  without-ranges    with --prefill: each prefill replica computes prompts of all lengths
  without-tokenizer  front ends know the tokens of no prompts but those that they have served
  without-affinity  nothing is known of cached prefixes
  without-forwards  prompts are computed where a proxy sent them; front ends forward none
  by-gain           stages for a predicted gain (planner.adopt: gain), not only if one is over
                    its limits
  static-split      planned stages for ever, a static split by length, and placement by queues
  ideal             one decider that knows the present state of each replica sends each request
                    where it costs least; clairvoyant knows the outputs, too
  paper             "preset: paper": plans from the requests of a minute, refined each second,
                    and the market as published
The paper's own comparisons, each the policy paper with one part replaced:
  no-pipeline      all replicas in one stage
  chain            one replica for each stage, up to eight stages
  refine-quantity  boundaries that give stages equally many requests
  refine-memory    boundaries that give stages equally much KV
  growth-only      no balance inside a stage: requests move only when they outgrow it, by bids
  growth-random    the same without loads: proxies take one replica after the other, and
                   what outgrows its stage goes to any replica of the next
With --stages the stages of Cascade and the paper are given instead of planned; routers and
policies of one stage have none.
Plans and weights take effect at once, and reports to the control plane are never late.
--proxies and --report-* are for routers only. --admission is for Cascade only, and other
policies are an error with it: its front ends refuse what would wait for too long.

Failures, drains and changes of speed (--fail, --drain, --slow) work with every policy. Under
Cascade a replica that fails takes its front end with it: the clients of that front end see a
cut, and other front ends resume what they had on the replica.

What a batch of unequal lengths costs beyond their sum depends on the attention kernel;
show every claim for all cases of --attention:
  sum           nothing
  ten-percent   attention takes 1.1 times as long in every batch of two or more
  measured      what --skew, a table of measured batches in LLMServingSim's format, says;
                outside of the table its nearest point, and the share of such iterations is
                printed
  stress        half of the way to attention that is paid for the longest request by all;
                stress:0.1 a tenth of it

Of a trace whose prompts share prefixes (hash_ids), a table shows the hit rate of the prefix
caches, its share of the ideal, and the spread of load between the replicas of a stage.
The SLO is the mean latency of a request that is alone, by the profile.

Not simulated are networks and HTTP. Traces are read line by line, in order of arrival;
a bad line ends the run with its file, line and field, or is counted and dropped with
--skip-invalid. Percentiles are within 0.25 %.`,
		Example: `  cascade sim --mix chat --requests 100000 --rate 400 --replicas 50 --policy round-robin,least-load
  cascade sim --trace conversation_trace.jsonl --spread 3s --replicas 8 --policy prefix-tree --json
  cascade sim --mix mixed --requests 20000 --replicas 16 --rate 40 --fail 3@60s..120s
  cascade sim --mix mixed --requests 20000 --replicas 16 --attention measured --skew decode_skew.csv.gz`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if src.file == "" && src.requests == 0 && src.duration == 0 {
				src.requests = defaultMix
			}
			return s.simulate(cmd, src, e)
		},
	}
	src.flags(c, 0)
	f := c.Flags()
	f.StringSliceVar(&e.policies, "policy", []string{"least-load"}, "policies to simulate: "+strings.Join(sim.Policies(), ", "))
	f.IntVar(&e.replicas, "replicas", 8, "replicas of the fleet")
	f.StringVar(&e.profile, "profile", "rtxpro6000-llama-3.1-8b", "cost profile of the replicas (see \"cascade profile\"), or a .json file")
	f.IntVar(&e.tp, "tp", 1, "tensor-parallel ranks of a replica, extrapolated from the profile")
	f.StringVar(&e.attention, "attention", "sum", "what batches of unequal lengths cost: "+strings.Join(cost.AttentionCases(), ", "))
	f.StringVar(&e.skew, "skew", "", "table of measured batches of unequal lengths (CSV, gzipped or not), for --attention measured")
	f.Int64Var(&e.kvTokens, "kv-tokens", 0, "tokens that a replica's KV cache holds; 0 is the profile's")
	f.IntVar(&e.batch, "batch", 0, "sequences that a replica runs at once; 0 is the profile's")
	f.BoolVar(&e.noCache, "no-prefix-cache", false, "replicas reuse no prefixes")
	f.BoolVar(&e.admission, "admission", false, "Cascade's front ends refuse requests that would wait for too long; else all are admitted")
	f.IntVar(&e.prefill, "prefill", 0, "replicas that compute prompts only, for prefill-decode (0 is half of them), cascade and one-stage")
	f.StringVar(&e.stages, "stages", "", "stages for ever, of Cascade's policies: END:REPLICAS,…,REPLICAS, such as 1024:4,4096:4,8")
	f.IntVar(&e.proxies, "proxies", 1, "proxies in front of the fleet, each of which knows only the requests that it sent")
	f.DurationVar(&e.reportEvery, "report-every", sim.DefaultReportInterval, "time between two reports of the replicas' loads")
	f.DurationVar(&e.reportDelay, "report-delay", 0, "time until a report reaches the proxies")
	f.DurationVar(&e.healthDelay, "health-delay", sim.DefaultHealthDelay, "time until the proxies notice that a replica failed or is back")
	f.StringArrayVar(&e.fail, "fail", nil, "fail a replica and all its requests: REPLICA@FROM or REPLICA@FROM..UNTIL, such as 3@60s..120s; may be repeated")
	f.StringArrayVar(&e.drain, "drain", nil, "send a replica no new requests, like --fail; may be repeated")
	f.StringArrayVar(&e.slow, "slow", nil, "change the speed of a replica, of which its profile says nothing, like --fail: 3@60s..120s:0.7 is 0.7 times as fast; may be repeated")
	f.BoolVar(&e.skipInvalid, "skip-invalid", false, "count and drop invalid lines of the trace")
	f.StringVar(&e.out, "out", "", "write results, tables and plots, and every request, into this directory")
	cli.CompleteFrom(c, "policy", sim.Policies())
	cli.CompleteFrom(c, "attention", cost.AttentionCases())
	cli.CompleteFrom(c, "profile", cost.Names())
	return c
}

// config returns what all policies have in common.
func (e *simFlags) config(cmd *cobra.Command, seed uint64) (sim.Config, error) {
	c := sim.Config{
		Replicas: e.replicas, KVTokens: policies.Tokens(e.kvTokens), MaxBatch: e.batch, NoPrefixCache: e.noCache, Admission: e.admission, Proxies: e.proxies,
		PrefillReplicas: e.prefill, ReportInterval: e.reportEvery, ReportDelay: e.reportDelay, HealthDelay: e.healthDelay, Seed: seed,
	}
	p, err := config.LoadProfile(e.profile, ".")
	if err != nil {
		return c, err
	}
	c.Profile = p.TensorParallel(e.tp)
	name, share, given := strings.Cut(e.attention, ":")
	if c.Attention, err = cost.ParseAttentionCase(name); err != nil {
		return c, cli.Usagef(cmd, "--attention: %w", err)
	}
	if given {
		c.Stress, err = strconv.ParseFloat(share, 64)
		if err != nil || c.Attention != cost.Stress || !(c.Stress > 0 && c.Stress <= 1) {
			return c, cli.Usagef(cmd, "--attention %s: write stress:SHARE with a share above 0 and at most 1", e.attention)
		}
	}
	if (c.Attention == cost.MeasuredSkew) != (e.skew != "") {
		return c, cli.Usagef(cmd, "--attention measured and --skew FILE go together")
	}
	if e.skew != "" {
		if c.Skew, err = atomicfile.Decode(e.skew, cost.ReadSkew); err != nil {
			return c, err
		}
	}
	if e.stages != "" {
		if c.Stages, err = parseStages(e.stages); err != nil {
			return c, cli.Usagef(cmd, "--stages %q: %w", e.stages, err)
		}
	}
	// In a fixed order, in which faults of one time happen.
	for _, given := range []struct {
		kind  sim.FaultKind
		texts []string
	}{{sim.Fail, e.fail}, {sim.Drain, e.drain}, {sim.Slow, e.slow}} {
		for _, text := range given.texts {
			fault, err := parseFault(given.kind, text)
			if err != nil {
				return c, cli.Usagef(cmd, "--%s %q: %w", given.kind, text, err)
			}
			c.Faults = append(c.Faults, fault)
		}
	}
	return c, nil
}

// parseStages parses END:REPLICAS,…,REPLICAS.
func parseStages(text string) (p policies.Partition, err error) {
	parts := strings.Split(text, ",")
	for i, part := range parts {
		end, count, hasEnd := strings.Cut(part, ":")
		if !hasEnd {
			end, count = "0", part
		}
		high, endErr := strconv.ParseInt(end, 10, 64)
		n, countErr := strconv.Atoi(count)
		if hasEnd != (i < len(parts)-1) || endErr != nil || countErr != nil {
			return p, errors.New("write END:REPLICAS for all stages but the last, and REPLICAS for that, such as 1024:4,4096:4,8")
		}
		if p.Counts = append(p.Counts, n); hasEnd {
			p.Cuts = append(p.Cuts, policies.Tokens(high))
		}
	}
	return p, nil
}

// parseFault parses REPLICA@FROM or REPLICA@FROM..UNTIL, and :SPEED behind it for sim.Slow.
func parseFault(kind sim.FaultKind, text string) (sim.Fault, error) {
	f := sim.Fault{Kind: kind}
	form, example := "REPLICA@FROM or REPLICA@FROM..UNTIL", "3@60s..120s"
	replica, times, ok := strings.Cut(text, "@")
	var errs [4]error
	if kind == sim.Slow {
		var speed string
		form, example = "REPLICA@FROM:SPEED or REPLICA@FROM..UNTIL:SPEED", "3@60s..120s:0.7"
		times, speed, _ = strings.Cut(times, ":")
		f.Speed, errs[3] = strconv.ParseFloat(speed, 64)
	}
	from, until, ends := strings.Cut(times, "..")
	f.Replica, errs[0] = strconv.Atoi(replica)
	f.At, errs[1] = time.ParseDuration(from)
	if ends {
		f.Until, errs[2] = time.ParseDuration(until)
	}
	if !ok || errors.Join(errs[:]...) != nil {
		return f, errors.New("write " + form + ", such as " + example)
	}
	return f, nil
}

// simulate runs every policy on the same requests, as many at a time as there are processors.
func (s *settings) simulate(cmd *cobra.Command, src *traceFlags, e *simFlags) error {
	shared, err := e.config(cmd, src.seed)
	if err != nil {
		return err
	}
	stages := shared.Stages
	if e.stages != "" && !slices.ContainsFunc(e.policies, sim.HasStages) {
		return cli.Usagef(cmd, "--stages: none of the policies %q has stages that can be given", e.policies)
	}
	for i, policy := range e.policies { // all of them, before the first one runs
		if slices.Contains(e.policies[:i], policy) {
			return cli.Usagef(cmd, "--policy: %q is named twice", policy)
		}
		shared.Policy, shared.Stages = policy, stagesOf(policy, stages)
		if err := shared.Validate(); err != nil {
			return err
		}
	}
	slo, err := src.slo(shared.Profile)
	if err != nil {
		return err
	}
	bar := progress.New(s.Stderr, "simulate", cmp.Or(src.requests, -1))
	var mu sync.Mutex
	ended := map[int]uint64{}
	results, skipped := make([]sim.Result, len(e.policies)), make([]invalidLines, len(e.policies))
	group, ctx := errgroup.WithContext(cmd.Context())
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, policy := range e.policies {
		group.Go(func() error {
			c := shared
			c.Policy, c.Stages = policy, stagesOf(policy, stages)
			c.Progress = func(p sim.Progress) {
				mu.Lock()
				defer mu.Unlock()
				ended[i] = p.Ended
				sum := uint64(0)
				for _, n := range ended {
					sum += n
				}
				bar.Set(int(sum) / len(e.policies))
			}
			var err error
			results[i], err = e.runOne(ctx, c, src, slo, &skipped[i])
			return err
		})
	}
	err = group.Wait()
	bar.End()
	if err != nil {
		return err
	}
	if n := skipped[0]; n.count > 0 {
		fmt.Fprintf(s.Stderr, "%d invalid lines were dropped; first: %s\n", n.count, n.first)
	}
	return s.showSimulation(results, e.out)
}

// stagesOf returns the stages that were given, for policies that have any.
func stagesOf(policy string, stages policies.Partition) policies.Partition {
	if !sim.HasStages(policy) {
		return policies.Partition{}
	}
	return stages
}

// invalidLines counts the lines of a trace that --skip-invalid dropped.
type invalidLines struct {
	count int
	first error
}

// add counts a dropped line.
func (n *invalidLines) add(bad *trace.Error) {
	if n.count++; n.first == nil {
		n.first = bad
	}
}

// runOne simulates one policy.
func (e *simFlags) runOne(ctx context.Context, c sim.Config, src *traceFlags, slo replay.SLO, skipped *invalidLines) (_ sim.Result, err error) {
	source, closeSource, err := src.stream(e.skipInvalid, skipped)
	if err != nil {
		return sim.Result{}, err
	}
	defer closeSource()
	records, err := createRecords(e.out, c.Policy)
	if err != nil {
		return sim.Result{}, err
	}
	out := bufio.NewWriter(records)
	defer func() { err = errors.Join(err, out.Flush(), records.Close()) }()
	encoder, attained := json.NewEncoder(out), replay.Attainment{SLO: slo}
	c.Record = func(r *replay.Record) {
		attained.Add(r, 1)
		if e.out != "" {
			_ = encoder.Encode(r) // Flush reports the error
		}
	}
	c.Source = source
	run, err := sim.New(c)
	if err != nil {
		return sim.Result{}, err
	}
	result, err := run.Run(ctx)
	result.Attainment = &attained
	return result, err
}

// showSimulation prints the results, and writes them into dir unless dir is empty.
func (s *settings) showSimulation(results []sim.Result, dir string) error {
	runs := make([]replay.Result, len(results))
	for i, r := range results {
		runs[i] = r.Result
	}
	if dir != "" {
		if err := writeResults(dir, runs, nil); err != nil {
			return err
		}
	}
	if s.JSON {
		return s.Print(results)
	}
	tables := append(resultTables(runs), report.Simulation(results))
	if m := report.SimulatedMoves(results); len(m.Rows) > 0 {
		tables = append(tables, m)
	}
	if plans := report.SimulatedPlans(results); len(plans.Rows) > 0 {
		tables = append(tables, plans)
	}
	if err := report.WriteTables(s.Stdout, tables...); err != nil {
		return err
	}
	if dir != "" {
		fmt.Fprintf(s.Stdout, "\nPlots, requests and results are in %s.\n", filepath.Clean(dir))
	}
	return nil
}
