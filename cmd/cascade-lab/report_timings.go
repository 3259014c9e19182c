package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
)

// measurePlanning measures how long the partition algorithms take for 16 replicas and 128K tokens, as Markdown.
func measurePlanning() (string, error) {
	const replicas, context, requests, repetitions = 16, 131_072, 4000, 5
	p, err := cost.Builtin("h200-llama-3.1-8b")
	if err != nil {
		return "", err
	}
	g, _ := trace.Named("sharegpt")
	g.Requests, g.Seed, g.Rate = requests, 1, 16
	drawn, err := g.Generate()
	if err != nil {
		return "", err
	}
	t := report.Table{
		Title: "Stage partitioning, 16 replicas, 128K tokens, ShareGPT", Header: []string{"algorithm", "buckets per octave", "median time", "cost over the exact plan's"}, Left: 1,
		Notes: []string{fmt.Sprintf("Measured on this machine while the report was made; medians of %d. The paper: 0.06 s optimised, an estimated 51 hours without optimisation.", repetitions)},
	}
	for _, perOctave := range []int{1, 8} {
		edges := policies.BucketEdges(context, perOctave)
		w := policies.Workload{
			Flow: trace.Flow(drawn, edges, false), QoE: p.QoEModel(), Cost: p.Cost(), Capacity: p.Capacity(), Transfer: p.Transfer(), Replicas: replicas,
			Limits: policies.Limits{Stages: policies.MaxStages},
		}
		w.Snapshot = trace.InFlight(drawn, edges, partition.InFlight(w))
		best := 0.0
		for _, x := range []struct {
			name string
			policies.Partitioner
		}{
			{"exact (ours)", partition.Exact{Objective: partition.Snapshot}},
			{"the paper's two phases", partition.TwoPhase{Objective: partition.Snapshot}},
			{"the paper's recursion, over buckets", partition.Recursion{Objective: partition.Snapshot}},
		} {
			var times []time.Duration
			var plan policies.Partition
			for range repetitions {
				began := time.Now()
				if plan, err = x.Partition(w); err != nil {
					return "", fmt.Errorf("plan by %s: %w", x.name, err)
				}
				times = append(times, time.Since(began))
			}
			slices.Sort(times)
			if best == 0 {
				best = plan.Cost
			}
			t.Rows = append(t.Rows, []string{x.name, fmt.Sprint(perOctave), fmt.Sprint(times[len(times)/2].Round(time.Microsecond)), report.FormatNumber(plan.Cost / best)})
		}
	}
	var out strings.Builder
	if err := t.Markdown(&out); err != nil {
		return "", err
	}
	return out.String(), nil
}
