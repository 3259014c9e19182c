package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/fileio"
	"github.com/cascadeinfer/cascade/cmd/internal/policydev"
	"github.com/cascadeinfer/cascade/engine/report"
)

// ownFrames is the path of the recorded calls in a policy's directory.
var ownFrames = filepath.Join("testdata", "frames.jsonl")

func newPolicyTest(s *settings) *cobra.Command {
	b, t := &policyBuildFlags{}, policydev.TestConfig{}
	var frames, configuration string
	var update bool
	c := &cobra.Command{
		Use:   "test [FILE|DIR]",
		Short: "Test a module as a host would run it",
		Long: `Test runs a module in the sandbox; a folder, the present one by default, is built first.
For each kind that the module decides:

  golden vectors   the calls that the protocol publishes are answered, also in the layout
                   of a later host; an unknown flag is refused as the protocol says
  expected         calls in FILE.golden, if it is there, are answered as they were when it
                   was written, for the same fuel
  same as native   random calls are decided as by the built-in policy of --native
  fuel             random calls stay within the kind's limit
  leaks            1e6 calls (refine, guard: 1e5; partition: 1e3) succeed, and memory does
                   not grow in the second half of them; if it does, of twice as many, and
                   so on up to eight times
  replay           two instances give equal results, fuel and memory, down to the byte

With --frames, or testdata/frames.jsonl in a folder, recorded calls are replayed, too, and
compared with the answers there, where there are some. No check depends on how fast the
machine is.

--update writes FILE.golden: up to twelve small calls of each kind, recorded ones and others,
with the answers and the fuel of now. "cascade policy sign" puts it into the signature file, and
then every host that is to run the module has it give those answers first, for that fuel.

Exit codes: 0 when all checks pass, 1 when one fails.`,
		Example: `  cascade policy test
  cascade policy test my-refiner.wasm --native refine-weighted
  cascade policy test --update
  cascade policy test my-bids --frames recorded.jsonl --calls 10000000`,
		Args: atMost(1, "module or directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if t.Calls < 0 || t.Random < 0 {
				return usageErrorf(cmd, "--calls and --random count: give numbers above 0, or 0 for the default")
			}
			path := pathOrWorkingDir(args)
			if frames == "" {
				if own := filepath.Join(path, ownFrames); exists(own) {
					frames = own
				}
			}
			if frames != "" {
				var err error
				if t.Frames, err = policydev.LoadFrames(frames); err != nil {
					return err
				}
			}
			subject, err := b.open(cmd.Context(), path, configuration)
			if err != nil {
				return err
			}
			r, err := s.testPolicy(cmd.Context(), subject, t, update)
			if err = errors.Join(err, subject.Close()); err != nil {
				return err
			}
			return s.printTestReport(r)
		},
	}
	b.flags(c)
	f := c.Flags()
	f.StringVar(&t.Native, "native", "", "built-in policy that it must decide like: "+strings.Join(policydev.Builtins(), ", "))
	f.StringVar(&frames, "frames", "", "file of recorded calls to replay")
	f.StringVar(&configuration, "configuration", "", "file with what the module is configured with")
	f.BoolVar(&update, "update", false, "write what the module answers now to FILE.golden")
	f.IntVar(&t.Calls, "calls", 0, "calls of the leak test for each kind; 0: as above")
	f.IntVar(&t.Random, "random", 0, "random calls for each kind; 0: 2000, partition 100")
	f.Uint64Var(&t.Seed, "seed", 1, "chooses the random calls")
	completeFrom(c, "native", policydev.Builtins())
	return c
}

// testPolicy tests a module and its expected answers; with update it first writes the expected
// answers.
func (s *settings) testPolicy(ctx context.Context, subject *policydev.Subject, t policydev.TestConfig, update bool) (r policydev.Report, err error) {
	at := subject.Path + policydev.GoldenSuffix
	if update {
		text, n, err := policydev.Expect(ctx, subject, t.Frames, t.Seed)
		if err != nil {
			return r, err
		}
		if err := fileio.WriteAtomic(at, text, 0o666); err != nil {
			return r, err
		}
		fmt.Fprintf(s.stderr, "%s: %s\n", at, plural(n, "answer"))
	}
	if exists(at) {
		if t.Golden, err = policydev.ReadGolden(at); err != nil {
			return r, err
		}
	}
	return policydev.Test(ctx, subject, t)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (s *settings) printTestReport(r policydev.Report) error {
	var failed error
	if r.Failed > 0 {
		failed = fmt.Errorf("%s: %s of %d failed", r.File, plural(r.Failed, "check"), len(r.Checks))
	}
	if s.json {
		return errors.Join(s.print(r), failed)
	}
	fmt.Fprintf(s.stdout, "%s: %d bytes, sha256 %s\n", r.File, r.Bytes, r.SHA256)
	t := report.Table{Header: []string{"kind", "check", "", ""}, Left: 4}
	for _, c := range r.Checks {
		text, rest, more := strings.Cut(c.Text, "\n")
		if more {
			text += " …"
		}
		t.Rows = append(t.Rows, []string{c.Kind, c.Name, c.Outcome, text})
		if more && c.Outcome == policydev.Failed {
			t.Notes = append(t.Notes, fmt.Sprintf("%s, %s: %s", c.Kind, c.Name, rest))
		}
	}
	return errors.Join(t.Text(s.stdout), failed)
}

func newPolicyBench(s *settings) *cobra.Command {
	b := &policyBuildFlags{}
	var native, configuration string
	var each time.Duration
	c := &cobra.Command{
		Use:   "bench [FILE|DIR]",
		Short: "Measure a module's calls beside the built-in policy's",
		Long: `Bench measures what a call costs from end to end: the frame is written, the module runs,
its answer is checked. Calls are of usual size: 16 bids or sites, 64 requests on either
side of a boundary. Beside it, in the same run and in turns, runs a built-in policy on the
same questions, natively. Figures are medians of five rounds; "empty" is a call with no
bids, sites or requests. Fuel is the same on every machine.`,
		Example: `  cascade policy bench
  cascade policy bench my-bids.wasm --native bid-paper --time 5s`,
		Args: atMost(1, "module or directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if each <= 0 {
				return usageErrorf(cmd, "--time %v: give some time for each kind", each)
			}
			subject, err := b.open(cmd.Context(), pathOrWorkingDir(args), configuration)
			if err != nil {
				return err
			}
			all, err := policydev.Bench(cmd.Context(), subject, native, each)
			if err = errors.Join(err, subject.Close()); err != nil {
				return err
			}
			return s.printBench(all)
		},
	}
	b.flags(c)
	c.Flags().StringVar(&native, "native", "", "built-in policy to run beside it; empty: the fleet's default for the kind")
	c.Flags().StringVar(&configuration, "configuration", "", "file with what the module is configured with")
	c.Flags().DurationVar(&each, "time", time.Second, "time to measure each kind for")
	completeFrom(c, "native", policydev.Builtins())
	return c
}

func (s *settings) printBench(all []policydev.BenchResult) error {
	t := report.Table{Header: []string{"kind", "beside", "ns/call", "native", "ratio", "empty", "allocs", "fuel p50", "p99", "of limit", "memory"}, Left: 2}
	for _, m := range all {
		native, ratio, name := "-", "-", "none is built in"
		if m.Native != "" {
			native, ratio, name = fmt.Sprintf("%.0f", m.Beside), fmt.Sprintf("%.1f×", m.Wasm/m.Beside), m.Native
		}
		t.Rows = append(t.Rows, []string{m.Kind, name, fmt.Sprintf("%.0f", m.Wasm), native, ratio, fmt.Sprintf("%.0f", m.Empty), fmt.Sprintf("%.2f", m.Allocs),
			fmt.Sprint(m.Fuel50), fmt.Sprint(m.Fuel99), fmt.Sprintf("%.2f %%", 100*float64(m.Fuel99)/float64(m.Limit)), fmt.Sprintf("%d KiB", m.Memory>>10)})
	}
	return s.printTable(all, t)
}
