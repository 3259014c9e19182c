package wiring

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
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
		w, err := f.readHistory(m)
		if err != nil {
			return fmt.Errorf("models[%d].history: %w", i, err)
		}
		f.histories[m.Name] = w
	}
	return nil
}

// readHistory reads the earlier requests of a model that has some.
func (f *Fleet) readHistory(m config.Model) (policies.Workload, error) {
	path := f.resolvePath(m.History)
	requests, err := readRequests(path)
	if err != nil {
		return policies.Workload{}, err
	}
	w, err := f.history(m, requests)
	if err != nil {
		return policies.Workload{}, fmt.Errorf("%s: %w", path, err)
	}
	return w, nil
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
		if r.Model == m.Name && !r.Draining && !r.Prefill {
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
	w := policies.Workload{Flow: trace.Flow(requests, edges, false), Cost: cost, Capacity: policies.Capacity{KV: 1, Batch: 1}, Replicas: replicas}
	w.Snapshot = trace.InFlight(requests, edges, partition.InFlight(w))
	return w, nil
}
