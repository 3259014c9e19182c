package report

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/sim"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/planner"
)

// Simulation shows what only a simulator sees.
func Simulation(results []sim.Result) Table {
	t := Table{
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
		note := fmt.Sprintf("Simulated: %d replicas of %s, seed %d", r.Replicas, r.Model, r.Seed)
		name, _, _ := strings.Cut(r.Attention, ":")
		if attention, err := cost.ParseAttentionCase(name); err == nil {
			note += fmt.Sprintf("; %s (--attention %s)", attention.Meaning(), r.Attention)
		}
		t.Notes = append(t.Notes, note+".")
		if r.Attention == cost.MeasuredSkew.String() {
			t.Notes = append(t.Notes, fmt.Sprintf("%s of the decoding iterations were outside of the table of measured skew (%s).", share(float64(r.Batches.Outside), float64(r.Batches.Priced)), r.Name))
		}
	}
	return t
}

// SimulatedMoves shows what moved.
func SimulatedMoves(results []sim.Result) Table {
	t := Table{
		Title:  "Moves",
		Header: []string{"policy", "reasons of moves", "moved", "failed", "rescued", "tokens", "stall per move", "messages per move", "placed elsewhere", "prefix pulls", "pulled tokens"},
		Left:   2,
	}
	for _, r := range results {
		m := r.Moves
		if m == nil {
			continue
		}
		per := func(x float64) float64 { return x / float64(max(1, m.Moved)) }
		var reasons []string
		for _, why := range []struct {
			count uint64
			name  string
		}{{m.Growth, "growth"}, {m.Outlier, "outlier"}, {m.Cheaper, "cheaper"}, {m.Spill, "spill"}, {m.Prefill, "prefill"}, {m.Drain, "drain"}} {
			if why.count > 0 {
				reasons = append(reasons, fmt.Sprintf("%d %s", why.count, why.name))
			}
		}
		t.Rows = append(t.Rows, []string{
			r.Name, strings.Join(reasons, ", "), fmt.Sprint(m.Moved), fmt.Sprint(m.Failed), fmt.Sprint(m.Rescued), fmt.Sprint(m.Tokens),
			fmt.Sprintf("%.1f ms", 1e3*per(m.StallSeconds)), fmt.Sprintf("%.1f", per(float64(m.Messages))),
			fmt.Sprint(m.Placed), fmt.Sprint(m.Pulls), fmt.Sprint(m.PulledTokens),
		})
	}
	return t
}

// SimulatedPlans shows the plans that came into force.
func SimulatedPlans(results []sim.Result) Table {
	t := Table{Title: "Plans", Header: []string{"policy", "after", "decision", "predicted gain", "stages: lengths, and replicas"}, Left: 3}
	for _, r := range results {
		for _, p := range r.Plans {
			if p.Decision == planner.Refined {
				continue
			}
			var stages []string
			for i, n := range p.Counts {
				low, high := policies.Tokens(0), policies.Unbounded
				if i > 0 {
					low = p.Cuts[i-1]
				}
				if i < len(p.Cuts) {
					high = p.Cuts[i]
				}
				stages = append(stages, fmt.Sprintf("%s on %d", policies.LengthRange(low, high), n))
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
