// Command plan shows the planner as a library: it counts a made-up traffic of
// short chats and long documents, and asks for the best stages of 8 replicas.
//
//	go run ./examples/plan
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
)

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "plan:", err)
		os.Exit(1)
	}
}

func run(out io.Writer) error {
	profile, err := cost.Builtin("h100-llama-3.1-8b")
	if err != nil {
		return err
	}
	// Ten minutes of traffic: 40 chats a second, and a long document every four seconds.
	edges := policies.BucketEdges(131072, 8)
	count := partition.NewFlowCounter(edges, 36000)
	count.Rates(0)
	for second := range 600 {
		now := float64(second)
		for range 40 {
			record(count, now, 800, 200)
		}
		if second%4 == 0 {
			record(count, now, 60000, 400)
		}
	}
	best, err := partition.Exact{}.Partition(policies.Workload{
		Flow: count.Rates(600), Cost: profile.Cost(), Capacity: profile.Capacity(), Transfer: profile.Transfer(), Replicas: 8,
	})
	if err != nil {
		return err
	}
	low := policies.Tokens(0)
	for i, n := range best.Counts {
		high := policies.Unbounded
		if i < len(best.Cuts) {
			high = best.Cuts[i]
		}
		fmt.Fprintf(out, "stage %d: lengths %s on %d replicas, %.1f ms an iteration\n", i, policies.LengthRange(low, high), n, best.Iterations[i]*1e3)
		low = high
	}
	fmt.Fprintf(out, "%.0f requests in the system, %.0f in one stage\n", best.Cost, best.OneStage)
	return nil
}

// record counts one whole request.
func record(c *partition.FlowCounter, now float64, input, output policies.Tokens) {
	c.CountArrival(now, input, 0)
	c.CountTokens(now, input+output, int(output))
	c.CountFinish(now, input, output)
}
