package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/policydev"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/internal/atomicfile"
)

// ownFrames is the path of the recorded calls in a policy's directory.
var ownFrames = filepath.Join("testdata", "frames.jsonl")

// policyTestFlags are the flags of "cascade policy test".
type policyTestFlags struct {
	policyBuildFlags
	policydev.TestConfig
	frames, configuration, out string
	update, build, bench       bool
	each                       time.Duration // of --bench
}

func newPolicyTest(s *settings) *cobra.Command {
	p := &policyTestFlags{}
	c := &cobra.Command{
		Use:   "test [FILE|DIR]",
		Short: "Build a module and test it as a host would run it; --build builds alone, --bench measures",
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
machine is. Lines that the module logs go to standard error, at most 64 a second.

--update writes FILE.golden: up to twelve small calls of each kind, recorded ones and others,
with the answers and the fuel of now. "cascade policy sign" puts it into the signature file, and
then every host that is to run the module has it give those answers first, for that fuel.

--build only builds: the Go, C or Rego files of a folder become NAME.wasm in it, or the file of
-o. The same sources and toolchain give the same bytes on every machine, so that others can
verify what was signed. Go needs the go command, 1.26 or later, alone. C needs a compiler for
wasm32: zig in PATH, the Python package ziglang where "make zig" puts it in the checkout of
Cascade that this program lies in, or in the Python that is in PATH ("pip install ` + policydev.ZigWheel + `"),
clang with wasm-ld, or what --cc names; cascade_policy.h need not be in the folder. Rego needs
nothing: OPA's compiler is in this program. Rules are of the package cascade.plan, for the kind
guard. Files that end in _test.go or _test.rego are left out, and a built-in function that a
module cannot have (sprintf is one) is an error with its line. Nothing in the folder is executed
and nothing is downloaded: run "go mod download" first for the modules that a Go policy needs.
Compilers are not sandboxes: build sources that you do not trust in one, such as a container.

--bench measures instead what a call costs from end to end: the frame is written, the module
runs, its answer is checked. Calls are of usual size: 16 bids or sites, 64 requests on either
side of a boundary. Beside it, in the same run and in turns, runs a built-in policy on the
same questions, natively: --native, or the fleet's default for the kind. Figures are medians
of five rounds; "empty" is a call with no bids, sites or requests. Fuel is the same on every
machine.

Exit codes: 0 when all checks pass, 1 when one fails.`,
		Example: `  cascade policy test
  cascade policy test my-refiner.wasm --native refine-weighted
  cascade policy test --update
  cascade policy test my-bids --frames recorded.jsonl --calls 10000000
  cascade policy test my-bids --build -o bids.wasm --cc "zig cc"
  cascade policy test my-bids.wasm --bench --native bid-paper --time 5s`,
		Args: cli.AtMost(1, "module or directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case p.Calls < 0 || p.Random < 0:
				return cli.Usagef(cmd, "--calls and --random count: give numbers above 0, or 0 for the default")
			case p.bench && p.each <= 0:
				return cli.Usagef(cmd, "--time %v: give some time for each kind", p.each)
			}
			if err := cmp.Or(cli.ExcludeFlags(cmd, "build", "bench", "update"), cli.RequireFlag(cmd, "build", "output"), cli.RequireFlag(cmd, "bench", "time")); err != nil {
				return err
			}
			path := pathOrWorkingDir(args)
			if p.build {
				built, err := policydev.Build(cmd.Context(), path, p.out, p.cc)
				if err != nil {
					return err
				}
				return s.PrintLine(built, "%s: %d bytes, sha256 %s (%s)", built.File, built.Bytes, built.SHA256, built.Compiler)
			}
			return s.runPolicyTest(cmd.Context(), p, path)
		},
	}
	p.policyBuildFlags.flags(c)
	f := c.Flags()
	f.BoolVar(&p.build, "build", false, "only build the module")
	f.StringVarP(&p.out, "output", "o", "", "with --build: file to write; empty: NAME.wasm in the directory")
	f.BoolVar(&p.bench, "bench", false, "measure the module's calls beside the built-in policy's, instead of testing")
	f.DurationVar(&p.each, "time", time.Second, "with --bench: time to measure each kind for")
	f.StringVar(&p.Native, "native", "", "built-in policy that it must decide like, or that --bench runs beside it: "+strings.Join(policydev.Builtins(), ", "))
	f.StringVar(&p.frames, "frames", "", "file of recorded calls to replay")
	f.StringVar(&p.configuration, "configuration", "", "file with what the module is configured with")
	f.BoolVar(&p.update, "update", false, "write what the module answers now to FILE.golden")
	f.IntVar(&p.Calls, "calls", 0, "calls of the leak test for each kind; 0: as above")
	f.IntVar(&p.Random, "random", 0, "random calls for each kind; 0: 2000, partition 100")
	f.Uint64Var(&p.Seed, "seed", 1, "chooses the random calls")
	cli.CompleteFrom(c, "native", policydev.Builtins())
	return c
}

// runPolicyTest tests or measures a module.
func (s *settings) runPolicyTest(ctx context.Context, p *policyTestFlags, path string) error {
	subject, err := s.openModule(ctx, &p.policyBuildFlags, path, p.configuration)
	if err != nil {
		return err
	}
	if p.bench {
		all, err := policydev.Bench(ctx, subject, p.Native, p.each)
		if err = errors.Join(err, subject.Close()); err != nil {
			return err
		}
		return s.printBench(all)
	}
	if own := filepath.Join(path, ownFrames); p.frames == "" && exists(own) {
		p.frames = own
	}
	if p.frames != "" {
		p.Frames, err = policydev.LoadFrames(p.frames)
	}
	var r policydev.Report
	if err == nil {
		r, err = s.testPolicy(ctx, subject, p.TestConfig, p.update)
	}
	if err = errors.Join(err, subject.Close()); err != nil {
		return err
	}
	return s.printTestReport(r)
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
		if err := atomicfile.Write(at, text, 0o644); err != nil {
			return r, err
		}
		fmt.Fprintf(s.Stderr, "%s: %s\n", at, cli.Plural(n, "answer"))
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
		failed = fmt.Errorf("%s: %s of %d failed", r.File, cli.Plural(r.Failed, "check"), len(r.Checks))
	}
	if s.JSON {
		return errors.Join(s.Print(r), failed)
	}
	fmt.Fprintf(s.Stdout, "%s: %d bytes, sha256 %s\n", r.File, r.Bytes, r.SHA256)
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
	return errors.Join(t.Text(s.Stdout), failed)
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
	return s.PrintTable(all, t)
}
