package main

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/evaluation"
	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/webpage"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/atomicfile"
)

// reportFlags are the flags of "cascade-lab report".
type reportFlags struct {
	out         string
	quick       bool
	traces      []string
	spread      time.Duration
	skipInvalid bool
	profiles    []string
	skew        string
	seed        uint64
}

// newReport is "cascade-lab report": the paper's evaluation, and ours, in simulation.
func newReport(s *settings) *cobra.Command {
	f := &reportFlags{}
	c := &cobra.Command{
		Use:   "report",
		Short: "Write the paper's whole evaluation, and a comparison with routers, as one HTML page",
		Long: `Report simulates the evaluation of the paper, figure by figure, and compares Cascade with what
you would run instead (least load, power of two, prefix tree, Llumnix), on five workloads, at
loads from light to past saturation, under four assumptions about what batches of unequal lengths
cost. Where Cascade loses, the page says so first.

It writes into --out:
  report.html   everything on one page that needs no other file: tables, plots, assumptions
  report.md     the same without plots
  results.json  the figures of every simulation
  timings.md    how long the planner takes on this machine; the only times that are measured
  runs/         finished simulations: an interrupted report goes on where it was, and a finished
                one removes those of other settings or of another program

The same command, with the same program, gives the same report.html, report.md and results.json,
byte for byte, on any machine and under any load: all times on the page are virtual. Nothing runs
on a GPU, and nothing is fetched.

The whole report takes some six minutes on two processors that do nothing else, --quick less than
one; how long it will take is shown while it runs. --quick has few and short runs, which show that
the page works and say nothing about Cascade.

Workloads are the mixes of "cascade trace" (mixed, chat, conversation, assistant, agent), or the
traces that you give; each is stretched to the loads of the comparison, and replayed from other
places for other seeds. The paper's experiments always have the lengths of ShareGPT.

Every row for a figure of the paper says whether it is reproduced (what it measures depends on no
GPU), approximated (simulated, on engines that stand for the paper's) or impossible here, and why,
with the paper's number beside ours.`,
		Example: `  cascade-lab report
  cascade-lab report --quick --out /tmp/look
  cascade-lab report --trace conversation_trace.jsonl --spread 3s --trace AzureLLMInferenceTrace_conv.csv --skip-invalid
  cascade-lab report --profile h200-llama-3.1-8b --profile mine.json
  cascade-lab report --skew decode_skew.csv.gz --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.makeReport(cmd.Context(), f) },
	}
	flags := c.Flags()
	flags.StringVar(&f.out, "out", filepath.Join("out", "report"), "directory for the report")
	flags.BoolVar(&f.quick, "quick", false, "a look in less than a minute, with too few and too short runs for conclusions")
	flags.StringArrayVar(&f.traces, "trace", nil, "compare on this trace instead of the mixes (arrival_ms,input_tokens,output_tokens CSV, Azure CSV or Mooncake JSONL, gzipped or not); may be repeated")
	flags.DurationVar(&f.spread, "spread", 0, "move each arrival of a trace later by a random part of this, for traces with a coarse clock (Mooncake: 3s)")
	flags.BoolVar(&f.skipInvalid, "skip-invalid", false, "count and drop invalid lines of the traces")
	flags.StringArrayVar(&f.profiles, "profile", []string{cost.BuiltinSkewName}, "compare on engines of this cost profile (see \"cascade profile\"), or .json file; may be repeated")
	flags.StringVar(&f.skew, "skew", "", "table of measured batches of unequal lengths (LLMServingSim's CSV, gzipped or not) for the attention case \"measured\"; without it, the built-in fit of one")
	flags.Uint64Var(&f.seed, "seed", 1, "decides everything random; further runs of a point count up from it")
	return c
}

// command returns the command that makes the report again, without its place.
func (f *reportFlags) command() string {
	words := []string{"cascade-lab report"}
	if f.quick {
		words = append(words, "--quick")
	}
	for _, t := range f.traces {
		words = append(words, "--trace "+filepath.Base(t))
	}
	if f.spread > 0 {
		words = append(words, "--spread "+f.spread.String())
	}
	if f.skipInvalid {
		words = append(words, "--skip-invalid")
	}
	for _, p := range f.profiles {
		words = append(words, "--profile "+filepath.Base(p))
	}
	if f.skew != "" {
		words = append(words, "--skew "+filepath.Base(f.skew))
	}
	return strings.Join(append(words, "--seed "+strconv.FormatUint(f.seed, 10)), " ")
}

// inputs reads what the flags name.
func (f *reportFlags) inputs() (in evaluation.Inputs, err error) {
	in = evaluation.Inputs{Size: evaluation.Full(), Seed: f.seed, Command: f.command()}
	if f.quick {
		in.Size = evaluation.Quick()
	}
	switch {
	case f.seed == 0:
		return in, fmt.Errorf("--seed: give at least 1")
	case f.spread < 0:
		return in, fmt.Errorf("--spread: %v must not be negative", f.spread)
	case len(f.traces) == 0 && (f.spread > 0 || f.skipInvalid):
		return in, fmt.Errorf("--spread and --skip-invalid change how a trace is read: give --trace")
	case len(f.profiles) == 0:
		return in, fmt.Errorf("--profile: give at least one")
	}
	for _, name := range f.profiles {
		p, err := config.LoadProfile(name, ".")
		if err != nil {
			return in, err
		}
		in.Engines = append(in.Engines, p)
	}
	fit := cost.BuiltinSkew()
	in.Skew, in.SkewSource = fit.Table(), fmt.Sprintf("%d coefficients fitted to %s, batches of %d to %d sequences, longest lengths of %d to %d tokens; the fit's own error is %.1f %% at p50 and %.1f %% at p90", len(fit.Sequences)*len(fit.Means), fit.Source, fit.Sequences[0], fit.Sequences[len(fit.Sequences)-1], fit.Shortest, fit.Longest, 100*fit.FitError.P50, 100*fit.FitError.P90)
	if f.skew != "" {
		if in.Skew, err = atomicfile.Decode(f.skew, cost.ReadSkew); err != nil {
			return in, err
		}
		in.SkewSource = filepath.Base(f.skew)
	}
	if len(f.traces) == 0 {
		for _, name := range trace.Names() {
			if g, _ := trace.Named(name); name != "sharegpt" { // which the paper's experiments have
				in.Workloads = append(in.Workloads, evaluation.Workload{Name: name, Source: "generated, fitted to " + g.Source, Generator: g})
			}
		}
	}
	for _, path := range f.traces {
		w, err := f.readWorkload(path)
		if err != nil {
			return in, err
		}
		in.Workloads = append(in.Workloads, w)
	}
	return in, nil
}

// makeReport simulates what is not stored yet, and writes the report.
func (s *settings) makeReport(ctx context.Context, f *reportFlags) error {
	in, err := f.inputs()
	if err != nil {
		return err
	}
	e, err := evaluation.New(in)
	if err != nil {
		return err
	}
	store, err := newRunStore(filepath.Join(f.out, "runs"), in, f.skew)
	if err != nil {
		return err
	}
	runs := e.Runs()
	outcomes, err := store.read(runs)
	if err != nil {
		return err
	}
	if err := s.execute(ctx, e, runs, outcomes, store); err != nil {
		return err
	}
	page, err := e.Page(outcomes)
	if err != nil {
		return err
	}
	timings, err := measurePlanning()
	if err != nil {
		return err
	}
	if err := writeReport(f.out, page, timings, runs, outcomes); err != nil {
		return err
	}
	if err := store.removeOthers(runs); err != nil {
		return err
	}
	return s.showReport(f.out, page, runs, outcomes)
}

// execute simulates the runs without an outcome, as many at a time as there are processors, and adds their outcomes.
func (s *settings) execute(ctx context.Context, e *evaluation.Evaluation, runs []evaluation.Run, outcomes map[evaluation.Run]evaluation.Outcome, store *runStore) error {
	var left []evaluation.Run
	for _, r := range runs {
		if _, ok := outcomes[r]; !ok {
			left = append(left, r)
		}
	}
	workers := runtime.GOMAXPROCS(0)
	progress := newReportProgress(s, e, left, workers)
	fmt.Fprintf(s.stderr, "%d simulations, %d of them stored; about %s on %d processors.\n", len(runs), len(runs)-len(left), progress.expected(), workers)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	for _, r := range left {
		group.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			out, err := e.Execute(ctx, r)
			if err != nil {
				return err
			}
			progress.add(r, func() { outcomes[r] = out })
			return store.write(r, out)
		})
	}
	defer progress.bar.End()
	return group.Wait()
}

// showReport says what was written.
func (s *settings) showReport(dir string, page webpage.Page, runs []evaluation.Run, outcomes map[evaluation.Run]evaluation.Outcome) error {
	if s.json {
		return s.print(struct {
			Page webpage.Page `json:"page"`
			Runs []storedRun  `json:"runs"`
		}{page, listOutcomes(runs, outcomes)})
	}
	for _, text := range page.Summary {
		fmt.Fprintf(s.stdout, "%s\n", text)
	}
	fmt.Fprintf(s.stdout, "Open %s; %s has the same tables.\n", filepath.Join(dir, "report.html"), filepath.Join(dir, "report.md"))
	return nil
}
