package slothost

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// warnOfOldPartition logs a partition module that was built before cascade-policy/1.4 and plans by snapshots. Frames
// had no QoE model then, so that it prices requests by the iteration model, and nothing else shows it: a module does
// not state the version that it was built for.
func warnOfOldPartition(k abi.Kind, m *host.Module, configuration []byte, warn func(message string, args ...any)) {
	if k != abi.Partition {
		return
	}
	i, err := m.Instantiate() // of its own: the questions are no calls of the policy
	if err != nil {
		return
	}
	defer i.Close()
	if i.Configure(abi.Call{}, configuration) == nil &&
		ignoresQoE(func(w policies.Workload) (policies.Partition, error) { return i.Partition(abi.Call{}, w) }) {
		warn("partition module prices snapshots by the iteration model, as those built before cascade-policy/1.4 do; " +
			"its plans separate lengths too much: rebuild it with the present guest SDK")
	}
}

// ignoresQoE reports whether the price of a plan depends on the requests in flight but not on the QoE model.
func ignoresQoE(partition func(policies.Workload) (policies.Partition, error)) bool {
	w := policies.Workload{
		QoE:      policies.QoE{D0: 6e-3, D1: 4e-6, D2: 8e-8, D3: 2e-12, D4: 4e-8},
		Cost:     policies.Cost{D0: 6e-3, D1: 4e-6, D2: 27e-6, D3: 7e-10, D4: 4e-8},
		Replicas: 2, Capacity: policies.Capacity{KV: 400_000, Batch: 256}, Flow: policies.NewFlow([]policies.Tokens{0, 1024, 8192}),
	}
	w.Flow.Seen = 1000
	for b, edge := range []float64{256, 2048, 16384} {
		rate := 4 / float64(b+1)
		w.Flow.Arrivals[b], w.Flow.Tokens[b], w.Flow.Reads[b], w.Flow.Weight[b] = rate, 100*rate, 100*rate*edge, 100*rate
		w.Flow.Prefill[b], w.Flow.Prefill2[b] = rate*edge, rate*edge*edge
		w.Snapshot = append(w.Snapshot, policies.Batch{N: rate, SumI: rate * edge, SumI2: rate * edge * edge, SumL: rate * (edge + 50)})
	}
	more, slower := w, w
	more.Snapshot = make([]policies.Batch, len(w.Snapshot))
	for b, s := range w.Snapshot {
		more.Snapshot[b] = policies.Batch{N: 3 * s.N, SumI: 3 * s.SumI, SumI2: 3 * s.SumI2, SumL: 3 * s.SumL}
	}
	slower.QoE = w.QoE.Scale(7)
	first, err := partition(w)
	if err != nil {
		return false
	}
	second, err := partition(more)
	if err != nil || second.Cost == first.Cost {
		return false
	}
	third, err := partition(slower)
	return err == nil && third.Cost == first.Cost
}
