// Package mutate is "cascade-lab mutate", which measures how much of a package its tests notice: it changes the
// package in one place at a time (a mutant) and runs the tests, which should fail.
//
//	cascade-lab mutate -budget 5m ./policies/... ./wasm/meter
//
// For each package it draws a seeded sample of the mutants, compiles all of them into one
// test binary, and starts that binary once per mutant, with $CASCADE_MUTANT naming it. The
// working tree is not written: the changed files are an overlay of the go command.
// The results are kept in .cache/mutate, so that a run which was interrupted or ran out of
// its budget continues, until a file of the package changes; -again runs the survivors
// again, after the tests have changed. The survivors go to cmd/cascade-lab/internal/mutate/survivors,
// where a reason that was added to one of them is kept.
//
// A mutant that runs out of CPU time counts as killed, and so does one with which the tests
// do nothing for much longer than without; one that does not compile is none.
// Lock and log calls are not removed: the former are the race detector's, and the latter
// change no behavior.
package mutate

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const module = "github.com/cascadeinfer/cascade/"

// tests lists the packages whose tests run, where a package's own are not those that
// judge it. The fleet's state machine is what the planner is tested through.
var tests = map[string][]string{
	"policies/lifecycle":      {"policies/lifecycle", "wasm/slothost", "xds/policyslots"},
	"policies/planner":        {"policies/planner", "xds/fleet"},
	"xds/internal/fleetstate": {"xds/internal/fleetstate", "xds/fleet"},
}

// forTests are the packages that only tests use.
var forTests = []string{"policies/policytest", "internal/testkit", "internal/testkit/issuer", "internal/testkit/plantest", "internal/httpserver/servertest"}

// outside matches the tests, by package and name, that start processes or compile modules by
// the go command.
var outside = regexp.MustCompile(`^(xds/.*\.Test.*(Envoy|Split|Federation|Lossy)|wasm/.*\.Test.*(Guest|Plugin|UnderFire|Process))`)

// Run parses the arguments and judges packages of the module in the working directory.
func Run(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("mutate", flag.ContinueOnError)
	sample := f.Int("n", 300, "sampled mutants of a package; 0 means all")
	seed := f.Uint64("seed", 1, "seed of the sample")
	budget := f.Duration("budget", time.Hour, "time after which no mutant is started")
	again := f.Bool("again", false, "run survivors again")
	if err := f.Parse(args); err != nil {
		return err
	}
	r := runner{sample: *sample, seed: *seed, again: *again, until: time.Now().Add(*budget)}
	return r.runAll(ctx, f.Args())
}

type runner struct {
	sample int
	seed   uint64
	again  bool
	until  time.Time
}

// runAll judges the packages that match the patterns, and prints a line of each.
func (r runner) runAll(ctx context.Context, patterns []string) error {
	if len(patterns) == 0 {
		return errors.New("name the packages, for example ./policies/...")
	}
	dirs, err := goList(ctx, append([]string{"-f", "{{if .GoFiles}}{{.ImportPath}}{{end}}"}, patterns...)...)
	if err != nil {
		return err
	}
	fmt.Println("| package | mutants | run | killed | score |\n|---|---|---|---|---|")
	for _, path := range strings.Fields(string(dirs)) {
		dir := strings.TrimPrefix(path, module)
		if slices.Contains(forTests, dir) {
			continue
		}
		if err := r.runPackage(ctx, dir); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// runPackage judges one package, as far as the budget allows.
func (r runner) runPackage(ctx context.Context, dir string) error {
	p, err := load(ctx, dir)
	if err != nil || len(p.mutants) == 0 {
		return err
	}
	drawn := slices.Clone(p.mutants)
	rand.New(rand.NewPCG(r.seed, 0)).Shuffle(len(drawn), func(i, j int) { drawn[i], drawn[j] = drawn[j], drawn[i] })
	if r.sample > 0 {
		drawn = drawn[:min(r.sample, len(drawn))]
	}
	results, err := openResults(p)
	if err != nil {
		return err
	}
	var bins []testBinary
	for _, m := range drawn {
		if done := results.verdicts[m.id]; ctx.Err() != nil || done == killed || done == survived && !r.again || time.Now().After(r.until) {
			continue
		}
		if bins == nil {
			if bins, err = build(ctx, p); err != nil {
				return err
			}
			defer os.RemoveAll(filepath.Dir(bins[0].file))
		}
		verdict, err := judge(ctx, bins, m)
		if errors.Is(err, errNoVerdict) && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "mutate:", err)
			continue
		}
		if err == nil {
			err = results.add(m, verdict)
		}
		if err != nil {
			return errors.Join(err, ctx.Err())
		}
	}
	return results.report(p, drawn)
}

// judge runs tests on a mutant until one fails.
func judge(ctx context.Context, bins []testBinary, m mutant) (verdict string, err error) {
	for _, b := range bins {
		if ok, err := b.pass(ctx, m); err != nil || !ok {
			return killed, err
		}
	}
	return survived, nil
}

func goList(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list"}, args...)...)
	cmd.Stderr = os.Stderr
	return cmd.Output()
}
