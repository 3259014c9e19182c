package loader

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// vectors returns the frames that a module of a kind must answer before it is used. Their
// arguments are usual ones and limits of the valid ranges, all of which a host may send.
// The answers are not prescribed, because policies decide differently.
func vectors(k abi.Kind) [][]byte {
	var all vectorList
	switch k {
	case abi.Partition:
		for _, w := range workloads() {
			add(&all, &abi.PartitionCodec, w)
		}
	case abi.Refine:
		qoe := usualQoE
		add(&all, &abi.RefineCodec, policies.BoundaryView{Boundary: 2048, High: policies.Unbounded, Peers: 1, Successors: 1, QoE: qoe})
		add(&all, &abi.RefineCodec, policies.BoundaryView{Boundary: 2048, High: policies.Unbounded, Peers: 4, Successors: 2, QoE: qoe,
			Local: []policies.Sequence{{Input: 100, Length: 150}, {Input: 1000, Length: 2000}}, Next: []policies.Sequence{{Input: 4000, Length: 4100}}})
		add(&all, &abi.RefineCodec, policies.BoundaryView{Boundary: 5000, Low: 4999, High: 5001, Peers: 2, Successors: 2, QoE: qoe,
			Local: sequences(64, 4000), Next: sequences(64, 90_000)})
	case abi.Quote:
		for _, pos := range []policies.Occupancy{{}, {Draining: true}, {Capacity: 400_000, Held: 120_000, Promised: 3000, Incoming: 5000, Throughput: 2_000_000},
			{Capacity: 400_000, Held: 400_000}, {Capacity: 1 << 40, Incoming: 1 << 39, Throughput: 1}} {
			add(&all, &abi.QuoteCodec, abi.QuoteArgs{Occupancy: pos, Migration: policies.Migration{Request: "front-1/77", Length: 4097, Cause: policies.Growth}})
		}
	case abi.Select:
		for _, n := range []int{0, 1, 3, 16, 32} {
			bids := make([]policies.Bid, n)
			for i := range bids { // with ties
				bids[i] = policies.Bid{From: policies.ReplicaID("replica-" + string(rune('a'+i))), Load: policies.Tokens(i * 7919 % 5 * 1000), Start: policies.Micros(i % 3 * 500)}
			}
			add(&all, &abi.SelectCodec, bids)
		}
	case abi.Outlier:
		for _, loads := range []abi.Loads{{}, {Own: 150_000, Mean: 100_000}, {Own: 1 << 40, Mean: 1}, {Own: 1, Mean: 1 << 40}} {
			add(&all, &abi.OutlierCodec, loads)
		}
	case abi.Place:
		own := policies.Candidate{ID: "r0", High: 2048, Waiting: 9000, Load: 50_000}
		peers := []policies.Candidate{{ID: "r1", Low: 2048, High: policies.Unbounded, Waiting: 100, Load: 80_000, Prefix: 1024},
			{ID: "replica-2", Low: 2048, High: policies.Unbounded, Load: 10_000}, {ID: "r3", High: 2048, Draining: true}}
		request := policies.Request{ID: "front-1/77", Model: "m", Input: 3000, Cached: 1024, MaxOutput: 512}
		add(&all, &abi.PlaceCodec, policies.Arrival{Own: own})
		add(&all, &abi.PlaceCodec, policies.Arrival{Request: request, Own: own, Peers: peers})
		add(&all, &abi.PlaceCodec, policies.Arrival{Request: request, Hops: 1, Own: own, Peers: peers})
		own.Draining = true
		add(&all, &abi.PlaceCodec, policies.Arrival{Request: request, Own: own, Peers: peers})
	case abi.Guard:
		now := policies.OneStagePlan("m", []policies.ReplicaID{"r0", "r1", "r2"})
		next := policies.Plan{Model: "m", Epoch: 8, Stages: []policies.Stage{
			{High: 4096, Replicas: []policies.ReplicaID{"r0", "r2"}}, {Low: 4096, High: policies.Unbounded, Replicas: []policies.ReplicaID{"r1"}}}}
		add(&all, &abi.GuardCodec, abi.Change{Next: now})
		add(&all, &abi.GuardCodec, abi.Change{Now: now, Next: next})
	}
	return all
}

type vectorList [][]byte

// add encodes a call whose arguments are known to fit into a frame.
func add[Q, A any](all *vectorList, k *abi.Codec[Q, A], q Q) {
	n := len(*all)
	frame, err := k.Frame(abi.Call{ID: uint64(n + 1), Now: policies.Second * policies.Micros(n), Seed: uint64(n) * 0x9e3779b97f4a7c15}, q)
	if err != nil {
		panic("internal error: a vector does not fit: " + err.Error())
	}
	*all = append(*all, frame)
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
