package policydev

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	wasm "github.com/cascadeinfer/cascade/wasm/slothost"
)

// call is a call of some kind, with its arguments.
type call interface {
	// frame returns the call's frame in newly allocated memory.
	frame(c abi.Call) ([]byte, error)
	// ask calls an instance as a host does, without recording.
	ask(i *host.Instance, c abi.Call) error
	// native calls a built-in policy, as a host without modules does.
	native(n *wasm.Native)
}

// callOf is a call of the kind of a codec.
type callOf[Q, A any] struct {
	codec *abi.Codec[Q, A]
	q     Q
}

func (k callOf[Q, A]) frame(c abi.Call) ([]byte, error) { return k.codec.Frame(c, k.q) }

func (k callOf[Q, A]) ask(i *host.Instance, c abi.Call) error {
	_, err := host.Ask(i, k.codec, c, k.q)
	return err
}

func (k callOf[Q, A]) native(n *wasm.Native) { wasm.Decide(n, k.codec, k.q) }

// random generates arguments. The same seed gives the same ones on every host.
type random struct{ *rand.Rand }

func newRandom(seed uint64, k abi.Kind) random { return random{rand.New(rand.NewPCG(seed, uint64(k)))} }

// cost has approximately the coefficients of a small model on one GPU.
var cost = policies.Cost{D0: 6e-3, D1: 15e-6, D2: 72e-6, D3: 1.9e-9, D4: 41e-9, Kappa: 0.5}

// qoe is its QoE model for outputs of 300 tokens.
var qoe = policies.QoE{D0: 6e-3, D1: 15e-6, D2: 240e-9, D3: 6.3e-12, D4: 41e-9}

func (r random) tokens(n int) policies.Tokens { return policies.Tokens(r.IntN(n)) }

// typical returns a call of usual size, for benchmarks.
func (r random) typical(k abi.Kind) call { return kinds[k].random(r, 16, 64) }

// any returns a call of any size that can occur in a fleet.
func (r random) any(k abi.Kind) call { return kinds[k].random(r, r.IntN(65), r.IntN(400)) }

func (r random) bids(n int) (bids []policies.Bid) {
	for i := range n {
		bids = append(bids, policies.Bid{From: replica(i), Load: r.tokens(1e6), Start: policies.Micros(r.IntN(5) * 1000)})
	}
	return bids
}

func (r random) quoteArgs() abi.QuoteArgs {
	return abi.QuoteArgs{
		Occupancy: policies.Occupancy{Capacity: 1e6 + r.tokens(1e6), Held: r.tokens(1e6), Promised: r.tokens(1e4), Incoming: r.tokens(1e5),
			Throughput: r.tokens(2) * r.tokens(1e6), Draining: r.IntN(20) == 0},
		Migration: policies.Migration{
			Request: fmt.Sprintf("front-%d/%d", r.IntN(9), r.IntN(1e6)), Length: 1 + r.tokens(1e5),
			Cause: policies.MigrationCause(1 + r.IntN(int(policies.Cheaper))),
		},
	}
}

func replica(i int) policies.ReplicaID { return policies.ReplicaID(fmt.Sprintf("replica-%d", i)) }

func (r random) border(n int) policies.BoundaryView {
	at := 1000 + r.tokens(30_000)
	b := policies.BoundaryView{Boundary: at, High: policies.Unbounded, Peers: 1 + r.IntN(8), Successors: 1 + r.IntN(8), QoE: qoe}
	if r.IntN(2) == 0 {
		b.Low, b.High = at/2, at*4
	}
	for range n {
		input := 1 + r.tokens(int(at))
		b.Local = append(b.Local, policies.Sequence{Input: input, Length: min(at, input+r.tokens(2000))})
		input = at + r.tokens(int(at))
		b.Next = append(b.Next, policies.Sequence{Input: input, Length: input + r.tokens(2000)})
	}
	return b
}

func (r random) arrival(peers int) policies.Arrival {
	site := func(id policies.ReplicaID) policies.Candidate {
		low := r.tokens(3) * 4000
		return policies.Candidate{ID: id, Low: low, High: low + 4000, Waiting: r.tokens(20_000), Load: r.tokens(1e6), Prefix: r.tokens(3000),
			Draining: r.IntN(12) == 0, Running: r.IntN(64), Price: r.Int64N(40) * 1_000_000}
	}
	a := policies.Arrival{
		Request: policies.Request{ID: fmt.Sprintf("front/%d", r.IntN(1e6)), Model: "m", Input: 1 + r.tokens(12_000), MaxOutput: r.tokens(2000), Estimated: r.IntN(2) == 0},
		Hops:    r.IntN(4) / 3, Own: site("own"),
	}
	for i := range peers {
		a.Peers = append(a.Peers, site(replica(i)))
	}
	return a
}

func (r random) workload() policies.Workload {
	edges := policies.BucketEdges(policies.Tokens(1)<<(10+r.IntN(7)), 1+r.IntN(4))
	w := policies.Workload{
		Flow: policies.NewFlow(edges), Snapshot: make([]policies.Batch, len(edges)), QoE: qoe, Cost: cost, Replicas: 1 + r.IntN(16),
		Capacity: policies.Capacity{KV: 100_000 + r.tokens(1e6), Batch: 32 + r.IntN(224)},
		Transfer: policies.Transfer{Base: 5e-3 * r.Float64(), PerToken: 5e-6 * r.Float64()},
		Limits:   policies.Limits{Stages: r.IntN(policies.MaxStages + 1)},
	}
	// The work in each bucket, in replicas: from idle to overloaded.
	load := 1.2 * r.Float64() * float64(w.Replicas) / float64(len(edges))
	for i, edge := range edges {
		length := (float64(edge) + 8) * (1 + r.Float64())
		part := load * math.Exp(r.NormFloat64())
		f, s := &w.Flow, &w.Snapshot[i]
		f.Tokens[i] = part / (2 * (w.Cost.D1 + w.Cost.D4*length))
		f.Reads[i] = f.Tokens[i] * length
		f.Arrivals[i] = f.Tokens[i] / 200
		f.Prefill[i] = part / (4 * w.Cost.D2)
		f.Prefill2[i] = f.Prefill[i] * length
		f.Weight[i] = f.Tokens[i] / 200
		f.Crossings[i] = f.Tokens[i] / (1 + length)
		s.N = 10 * r.Float64()
		s.SumL, s.SumI, s.SumI2 = s.N*length, s.N*length/2, s.N*length*length/3
	}
	w.Flow.Seen = uint64(r.IntN(1e6))
	return w
}

func (r random) change() abi.Change {
	n := 1 + r.IntN(24)
	ch := abi.Change{Next: r.plan(n, 2)}
	if r.IntN(4) > 0 {
		ch.Now = r.plan(max(1, n-r.IntN(3)), 1)
	}
	return ch
}

func (r random) plan(replicas int, epoch policies.Epoch) policies.Plan {
	p := policies.Plan{Model: "m", Epoch: epoch}
	stages := 1 + r.IntN(min(replicas, policies.MaxStages))
	low := policies.Tokens(0)
	for i := range stages {
		s := policies.Stage{Low: low, High: low + 500 + r.tokens(8000)}
		if i == stages-1 {
			s.High = policies.Unbounded
		}
		low = s.High
		for j := i; j < replicas; j += stages {
			s.Replicas = append(s.Replicas, replica(j))
		}
		p.Stages = append(p.Stages, s)
	}
	return p
}
