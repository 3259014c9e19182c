// Package frontier is "cascade-lab frontier": it sweeps policies and planner settings over workloads, loads and fleet
// sizes in the simulator, and says for each setting where it keeps the rule for Cascade's defaults:
//
//	cascade-lab frontier [-candidates cascade,one-stage] [-iteration-ratio 1.1,1.3] [-slack 0.01,0.05] [-seeds 1,2,3] [-plot cells.svg]
//
// The rule, over the normalised latency (end to end, per token received) of all requests, those
// before the first plan too:
//
//  1. the 99th percentile of the longest decile (by prompt) is at most 1.10 times least load's;
//  2. median and 95th percentile of the other nine deciles are at most 1.02 times those of the best
//     rival for each: least load, power of two choices, and the prefix tree of vLLM's and SGLang's
//     routers.
//
// Workloads, loads, fleets and rule were fixed before any default was tuned by them (see
// workloads.json); a verdict about a default uses -seeds that the tuning has not seen, and -trace.
package frontier

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/engine/sim"
)

// Run parses the arguments, simulates, and prints the tables.
func Run(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("frontier", flag.ContinueOnError)
	var (
		candidates = f.String("candidates", sim.Cascade+","+sim.OneStage, "policies of Cascade to judge, divided by commas")
		ratios     = f.String("iteration-ratio", "", "the ratio of planner.iteration to judge each candidate with, divided by commas; below 0: none; empty: the default")
		slacks     = f.String("slack", "", "slacks of the planner to judge each candidate with, as shares of the least cost, divided by commas; below 0: none; empty: the default")
		storeDir   = f.String("store", "", "keep every cell's figures in this folder, and do not simulate again what is there")
		plotFile   = f.String("plot", "", "draw every cell of the first candidate into this .svg file")
		workloads  = f.String("workloads", "", "names of workloads, divided by commas; empty: all")
		sizes      = f.String("replicas", "4,8,16", "sizes of fleets")
		loads      = f.String("loads", "0.3,0.5,0.7,0.85", "arrivals as shares of what the fleet completes when it is saturated")
		seeds      = f.String("seeds", "1,2,3", "seeds, whose requests are judged together")
		requests   = f.Int("requests", 4000, "requests for each seed")
		profile    = f.String("profile", "rtxpro6000-llama-3.1-8b", "cost profile: a built-in one's name or a JSON file")
		traceFile  = f.String("trace", "", "instead of the workloads: a generator fitted to this trace file")
		verbose    = f.Bool("v", false, "print every cell's figures, too")
	)
	f.Usage = func() {
		fmt.Fprintf(f.Output(), "Frontier simulates settings of the planner and says where they keep the rule for defaults: the longest\n"+
			"decile's p99 is at most %v times least load's, median and p95 of the others at most %v times the best rival's.\n", longestBound, equalBound)
		f.PrintDefaults()
	}
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("argument %q: give flags only", f.Arg(0))
	}
	s := sweep{requests: *requests, workers: runtime.GOMAXPROCS(0), progress: os.Stderr}
	var err error
	if s.store, err = newStore(*storeDir); err != nil {
		return err
	}
	if s.profile, err = config.LoadProfile(*profile, "."); err != nil {
		return err
	}
	if s.workloads, err = openWorkloads(*workloads, *traceFile); err != nil {
		return err
	}
	if s.replicas, err = parseList(*sizes, strconv.Atoi); err != nil {
		return fmt.Errorf("-replicas: %w", err)
	}
	if s.loads, err = parseList(*loads, parseFloat); err != nil {
		return fmt.Errorf("-loads: %w", err)
	}
	if s.seeds, err = parseList(*seeds, func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) }); err != nil {
		return fmt.Errorf("-seeds: %w", err)
	}
	var limits []float64
	if *ratios != "" {
		if limits, err = parseList(*ratios, parseFloat); err != nil {
			return fmt.Errorf("-iteration-ratio: %w", err)
		}
	}
	var gives []float64
	if *slacks != "" {
		if gives, err = parseList(*slacks, parseFloat); err != nil {
			return fmt.Errorf("-slack: %w", err)
		}
	}
	for _, policy := range split(*candidates) {
		plans := policy == sim.Cascade || policy == sim.WithoutMoves || policy == sim.StaticSplit
		switch {
		case !slices.Contains(sim.Policies(), policy):
			return fmt.Errorf("-candidates: policy %q: must be one of %q", policy, sim.Policies())
		case len(limits) > 0 && !plans:
			return fmt.Errorf("-iteration-ratio: policy %q makes no plans within a ratio; judge it without", policy)
		case len(gives) > 0 && !plans:
			return fmt.Errorf("-slack: policy %q makes no plans with a slack; judge it without", policy)
		}
		s.candidates = append(s.candidates, variants(policy, limits, gives)...)
	}
	if len(s.candidates) == 0 {
		return errors.New("-candidates: give at least one")
	}
	var draw func(report.Picture) error
	if *plotFile != "" { // a wrong name is an error before an hour of simulations
		if draw, err = openPlot(*plotFile); err != nil {
			return err
		}
	}
	cells, err := s.run(ctx)
	if err != nil {
		return err
	}
	if *verbose {
		if err := figuresTable(cells).Text(os.Stdout); err != nil {
			return err
		}
	}
	if err := verdictsTable(cells).Text(os.Stdout); err != nil {
		return err
	}
	if err := brokenTable(cells).Text(os.Stdout); err != nil {
		return err
	}
	if draw == nil {
		return nil
	}
	picture, err := plotCells(cells)
	if err != nil {
		return err
	}
	return draw(picture)
}

// variants returns a policy with each of the settings, which may be none.
func variants(policy string, ratios, slacks []float64) (out []candidate) {
	if len(ratios) == 0 {
		ratios = []float64{0}
	}
	if len(slacks) == 0 {
		slacks = []float64{0}
	}
	for _, r := range ratios {
		for _, s := range slacks {
			c := candidate{Name: policy, Policy: policy, IterationRatio: r, Slack: s}
			if r != 0 {
				c.Name += fmt.Sprintf(", ratio %v", r)
			}
			if s != 0 {
				c.Name += fmt.Sprintf(", slack %v", s)
			}
			out = append(out, c)
		}
	}
	return out
}

// openPlot creates the file of a picture, which the returned function draws.
func openPlot(name string) (func(report.Picture) error, error) {
	if filepath.Ext(name) != ".svg" {
		return nil, fmt.Errorf("-plot %s: a picture's file ends in .svg", name)
	}
	// An earlier picture stays until there is another one: the sweep takes an hour, and may be interrupted.
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	return func(p report.Picture) error { return errors.Join(f.Truncate(0), p.Write(f), f.Close()) }, nil
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}

func parseFloat(s string) (float64, error) { return strconv.ParseFloat(s, 64) }

// parseList parses each word of a list divided by commas, of which there is at least one.
func parseList[T any](list string, parse func(string) (T, error)) ([]T, error) {
	var out []T
	for _, word := range split(list) {
		v, err := parse(word)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	if len(out) == 0 {
		return nil, errors.New("give at least one value")
	}
	return out, nil
}
