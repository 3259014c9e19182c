package slothost

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// The arguments of the vectors that are too long for the table of kinds.

func quoteVectors() (all []abi.QuoteArgs) {
	move := policies.Migration{Request: "front-1/77", Length: 4097, Cause: policies.Growth}
	for _, pos := range []policies.Occupancy{
		{}, {Draining: true}, {Capacity: 400_000, Held: 400_000}, {Capacity: 1 << 40, Incoming: 1 << 39, Throughput: 1},
		{Capacity: 400_000, Held: 120_000, Promised: 3000, Incoming: 5000, Throughput: 2_000_000},
	} {
		all = append(all, abi.QuoteArgs{Occupancy: pos, Migration: move})
	}
	return all
}

func selectVectors() (all [][]policies.Bid) {
	for _, n := range []int{0, 1, 3, 16, 32} {
		bids := make([]policies.Bid, n)
		for i := range bids { // with ties
			bids[i] = policies.Bid{From: policies.ReplicaID("replica-" + string(rune('a'+i))),
				Load: policies.Tokens(i * 7919 % 5 * 1000), Start: policies.Micros(i % 3 * 500)}
		}
		all = append(all, bids)
	}
	return all
}

func placeVectors() []policies.Arrival {
	own := policies.Candidate{ID: "r0", High: 2048, Waiting: 9000, Load: 50_000, Running: 12, Price: 9_000_000}
	draining := own
	draining.Draining = true
	peers := []policies.Candidate{{ID: "r1", Low: 2048, High: policies.Unbounded, Waiting: 100, Load: 80_000, Prefix: 1024, Running: 40},
		{ID: "replica-2", Low: 2048, High: policies.Unbounded, Load: 10_000, Running: 3, Price: 2_000_000}, {ID: "r3", High: 2048, Draining: true}}
	request := policies.Request{ID: "front-1/77", Model: "m", Input: 3000, Cached: 1024, MaxOutput: 512}
	return []policies.Arrival{
		{Own: own}, {Request: request, Own: own, Peers: peers},
		{Request: request, Hops: 1, Own: own, Peers: peers}, {Request: request, Own: draining, Peers: peers},
	}
}

func refineVectors() []policies.BoundaryView {
	return []policies.BoundaryView{
		{Boundary: 2048, High: policies.Unbounded, Peers: 1, Successors: 1, QoE: usualQoE},
		{Boundary: 2048, High: policies.Unbounded, Peers: 4, Successors: 2, QoE: usualQoE,
			Local: []policies.Sequence{{Input: 100, Length: 150}, {Input: 1000, Length: 2000}},
			Next:  []policies.Sequence{{Input: 4000, Length: 4100}}},
		{Boundary: 5000, Low: 4999, High: 5001, Peers: 2, Successors: 2, QoE: usualQoE,
			Local: sequences(64, 4000), Next: sequences(64, 90_000)},
	}
}

func guardVectors() []abi.Change {
	now := policies.OneStagePlan("m", []policies.ReplicaID{"r0", "r1", "r2"})
	next := policies.Plan{Model: "m", Epoch: 8, Stages: []policies.Stage{
		{High: 4096, Replicas: []policies.ReplicaID{"r0", "r2"}}, {Low: 4096, High: policies.Unbounded, Replicas: []policies.ReplicaID{"r1"}}}}
	return []abi.Change{{Next: now}, {Now: now, Next: next}}
}

var usualCost = policies.Cost{D0: 0.008, D1: 0.00011, D2: 2e-5, D3: 1e-10, D4: 3e-8, Kappa: 0.5}

var usualQoE = policies.QoE{D0: 0.008, D1: 0.00011, D2: 1e-7, D3: 5e-13, D4: 3e-8}

func sequences(n int, length policies.Tokens) []policies.Sequence {
	all := make([]policies.Sequence, n)
	for i := range all {
		all[i] = policies.Sequence{Input: length / 2, Length: length + policies.Tokens(i*31)}
	}
	return all
}

// workloads returns a usual workload, one without work, and an infeasible one.
func workloads() []policies.Workload {
	f := policies.NewFlow([]policies.Tokens{0, 1024, 16_384})
	for i := range f.Edges {
		x := float64(i + 1)
		f.Arrivals[i], f.Tokens[i], f.Reads[i], f.Prefill[i], f.Prefill2[i], f.Weight[i], f.Crossings[i] = 10/x, 900/x, 1e6*x, 5000/x, 2.5e7, 0.25/x, x-1
	}
	f.Seen = 123_456
	usual := policies.Workload{
		Flow: f, Snapshot: []policies.Batch{{N: 10, SumI: 3000, SumI2: 1e6, SumL: 5000}, {N: 4, SumI: 9000, SumI2: 2.2e7, SumL: 11_000}, {}},
		QoE: usualQoE, Cost: usualCost, Capacity: policies.Capacity{KV: 400_000, Batch: 256, TransferRate: 12.5}, Replicas: 8,
		Transfer: policies.Transfer{Base: 0.01, PerToken: 1e-6}, Limits: policies.Limits{Stages: 4, Utilisation: 0.9},
	}
	idle, tight := usual, usual
	idle.Flow, idle.Snapshot, idle.Replicas = policies.NewFlow([]policies.Tokens{0, 1024}), make([]policies.Batch, 2), 1
	tight.Limits.Iteration = 1e-9
	return []policies.Workload{usual, idle, tight}
}
