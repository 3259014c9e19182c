package main

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/engine/sim"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/planner"
)

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
	if s.json {
		return s.print(results)
	}
	tables := append(resultTables(runs), simulationTable(results))
	if m := movesTable(results); len(m.Rows) > 0 {
		tables = append(tables, m)
	}
	if plans := simulatedPlans(results); len(plans.Rows) > 0 {
		tables = append(tables, plans)
	}
	for _, t := range tables {
		if err := t.Text(s.stdout); err != nil {
			return err
		}
	}
	if dir != "" {
		fmt.Fprintf(s.stdout, "Plots, requests and results are in %s.\n", filepath.Clean(dir))
	}
	return nil
}

// simulationTable shows what only a simulator sees.
func simulationTable(results []sim.Result) report.Table {
	t := report.Table{
		Title:  "Engines",
		Header: []string{"policy", "iterations", "tokens per iteration", "preemptions", "prefix hits", "busy", "busiest"},
		Left:   1,
	}
	share := func(a, b float64) string {
		if b == 0 {
			return "–"
		}
		return fmt.Sprintf("%.1f %%", 100*a/b)
	}
	for _, r := range results {
		x := r.Engines
		t.Rows = append(t.Rows, []string{
			r.Name, strconv.FormatUint(x.Iterations, 10), fmt.Sprintf("%.1f", float64(x.GenerationTokens)/float64(max(1, x.Iterations))), strconv.FormatUint(x.Preemptions, 10),
			share(float64(x.PrefixHits), float64(x.PrefixQueries)), share(x.BusySeconds/float64(r.Replicas), r.Engine.Seconds), share(x.BusiestSeconds, r.Engine.Seconds),
		})
	}
	if len(results) > 0 {
		r := results[0]
		t.Notes = append(t.Notes, fmt.Sprintf("Simulated: %d replicas of %s, attention case %q, seed %d.", r.Replicas, r.Model, r.Attention, r.Seed))
		if r.Attention == cost.MeasuredSkew.String() {
			t.Notes = append(t.Notes, fmt.Sprintf("%s of the decoding iterations were outside of the table of measured skew (%s).", share(float64(r.Batches.Outside), float64(r.Batches.Priced)), r.Name))
		}
	}
	return t
}

// movesTable shows what moved.
func movesTable(results []sim.Result) report.Table {
	t := report.Table{
		Title:  "Moves",
		Header: []string{"policy", "placed elsewhere", "moved", "growth", "outlier", "spill", "prefill", "drain", "failed", "rescued", "tokens", "stall per move", "messages per move", "prefix pulls", "pulled tokens"},
		Left:   1,
	}
	for _, r := range results {
		m := r.Moves
		if m == nil {
			continue
		}
		per := func(x float64) float64 { return x / float64(max(1, m.Moved)) }
		row := []string{r.Name}
		for _, n := range []uint64{m.Placed, m.Moved, m.Growth, m.Outlier, m.Spill, m.Prefill, m.Drain, m.Failed, m.Rescued, uint64(m.Tokens)} {
			row = append(row, strconv.FormatUint(n, 10))
		}
		t.Rows = append(t.Rows, append(row, fmt.Sprintf("%.1f ms", 1e3*per(m.StallSeconds)), fmt.Sprintf("%.1f", per(float64(m.Messages))),
			strconv.FormatUint(m.Pulls, 10), strconv.FormatInt(int64(m.PulledTokens), 10)))
	}
	return t
}

// simulatedPlans shows the plans that came into force.
func simulatedPlans(results []sim.Result) report.Table {
	t := report.Table{Title: "Plans", Header: []string{"policy", "after", "decision", "predicted gain", "replicas of the stages, and where they begin"}, Left: 3}
	for _, r := range results {
		for _, p := range r.Plans {
			if p.Decision == planner.Refined {
				continue
			}
			var stages []string
			for i, n := range p.Counts {
				low := policies.Tokens(0)
				if i > 0 {
					low = p.Cuts[i-1]
				}
				stages = append(stages, fmt.Sprintf("%d from %d", n, low))
			}
			gain := "–"
			if p.Gain > 0 && p.Gain < 1 { // 1: the plan before could not carry the load
				gain = fmt.Sprintf("%.0f %%", 100*p.Gain)
			}
			t.Rows = append(t.Rows, []string{r.Name, fmt.Sprintf("%.0f s", p.Seconds), p.Decision + ": " + p.Reason, gain, strings.Join(stages, ", ")})
		}
		if r.Refined > 0 {
			t.Notes = append(t.Notes, fmt.Sprintf("%s: boundaries were refined %d times; --json lists the first.", r.Name, r.Refined))
		}
	}
	return t
}
