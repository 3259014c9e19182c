//go:build !wasip1

package main

import (
	"fmt"
	"io"
	"os"

	"github.com/cascadeinfer/cascade/policies"
	exact "github.com/cascadeinfer/cascade/policies/partition"
)

// main is no part of the module, which must not link package fmt.
func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "nvlink:", err)
		os.Exit(1)
	}
}

// traffic is a made-up fleet of 16 replicas, two on a machine, between whose machines KV
// travels slowly: requests that think for long, and so go from stage to stage.
func traffic() policies.Workload {
	edges := policies.BucketEdges(65536, 4)
	count := exact.NewFlowCounter(edges, 36000)
	count.Rates(0)
	for second := range 600 {
		for i := range 6 {
			input, output := policies.Tokens(400+100*i), policies.Tokens(500<<i)
			count.CountArrival(float64(second), input, 0)
			count.CountTokens(float64(second), input+output, int(output))
			count.CountFinish(float64(second), input, output)
		}
	}
	return policies.Workload{
		Flow: count.Rates(600), Cost: policies.Cost{D0: 6e-3, D1: 15e-6, D2: 72e-6, D3: 1.9e-9, D4: 41e-9}, Replicas: 16,
		Capacity: policies.Capacity{KV: 1 << 21, Batch: 512}, Transfer: policies.Transfer{Base: 2e-3, PerToken: 5e-5},
	}
}

func run(out io.Writer) error {
	w := traffic()
	far, err := exact.Exact{}.Partition(w)
	if err != nil {
		return err
	}
	p := &nvlink{node: 2, slower: 10}
	near, err := p.Partition(w)
	if err != nil {
		return err
	}
	for _, d := range []struct {
		name string
		policies.Partition
	}{{"blind", far}, {"nvlink", near}} {
		lost := p.lost(w, d.Partition)
		fmt.Fprintf(out, "%-6s  replicas %v, cuts %v: %.1f requests in the system, %.1f more because of those that leave a machine: %.1f\n",
			d.name, d.Counts, d.Cuts, d.Cost, lost, d.Cost+lost)
	}
	return nil
}
