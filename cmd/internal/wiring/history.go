package wiring

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/flow"
	"github.com/cascadeinfer/cascade/policies/partition"
)

// untimedLoad is the share of its time for which the fleet is busy, besides the fixed cost of
// iterations, with the requests of a history without times.
const untimedLoad = 0.5

// readHistories reads the earlier requests for which the first plans are made.
func (f *Fleet) readHistories() error {
	f.histories = make(map[string]policies.Workload)
	for i, m := range f.Models {
		if m.History == "" {
			continue
		}
		path := f.resolvePath(m.History)
		requests, err := readRequests(path)
		if err != nil {
			return fmt.Errorf("models[%d].history: %w", i, err)
		}
		w, err := f.history(m, requests)
		if err != nil {
			return fmt.Errorf("models[%d].history: %s: %w", i, path, err)
		}
		f.histories[m.Name] = w
	}
	return nil
}

func readRequests(path string) ([]trace.Request, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return trace.Read(file, filepath.Base(path))
}

// history returns the workload that such requests are for the replicas of a model. Without
// times, the requests keep the fleet half busy.
func (f *Fleet) history(m config.Model, requests []trace.Request) (policies.Workload, error) {
	cost := f.Profiles[m.Name].TensorParallel(f.minTensorParallel(m.Name)).Cost()
	replicas := 0
	for _, r := range f.Registry() {
		if r.Model == m.Name && !r.Draining {
			replicas++
		}
	}
	shape := trace.Shape{MaxLength: m.Context}
	if len(requests) > 0 && requests[0].At < 0 {
		work := 0.0
		for _, r := range requests {
			i, o := float64(r.Input), float64(r.Output)
			work += cost.D2*i + cost.D3*i*i + o*(cost.D1+cost.D4*(i+o/2))
		}
		shape.Rate = untimedLoad * float64(replicas*len(requests)) / work
	} else {
		shape.Speed = f.Speed
	}
	requests, err := shape.Apply(requests)
	if err != nil {
		return policies.Workload{}, err
	}
	edges := f.Edges(m)
	w := policies.Workload{Flow: flowOf(requests, edges), Cost: cost, Capacity: policies.Capacity{KV: 1, Batch: 1}, Replicas: replicas}
	w.Snapshot = inFlight(requests, edges, partition.InFlight(w))
	return w, nil
}

// flowOf counts requests, each with its whole prompt.
func flowOf(requests []trace.Request, edges []policies.Tokens) policies.Flow {
	last := requests[len(requests)-1].At.Seconds()
	count := flow.New(edges, 1000*(last+1)) // which forgets nothing
	count.Rates(0)
	for _, r := range requests {
		at := r.At.Seconds()
		count.CountArrival(at, r.Input, 0)
		count.CountTokens(at, r.Input+r.Output, int(r.Output))
		count.CountFinish(at, r.Input, r.Output)
	}
	return count.Rates(max(last, 1))
}

// inFlight returns n requests in flight, each as often at a length as it generates tokens there.
func inFlight(requests []trace.Request, edges []policies.Tokens, n float64) []policies.Batch {
	out := make([]policies.Batch, len(edges))
	total := 0.0
	for _, r := range requests {
		i, end := float64(r.Input), r.Input+r.Output
		for b := policies.BucketOf(edges, r.Input+1); b < len(edges) && edges[b] <= end; b++ {
			first, last := max(r.Input+1, edges[b]), end
			if b+1 < len(edges) {
				last = min(last, edges[b+1]-1)
			}
			k := float64(last - first + 1)
			out[b] = out[b].Plus(policies.Batch{N: k, SumI: k * i, SumI2: k * i * i, SumL: k * float64(first+last) / 2})
			total += k
		}
	}
	for b := range out {
		out[b] = out[b].Scale(n / total)
	}
	return out
}
