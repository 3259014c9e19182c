package policytest

import (
	"math"
	"math/rand/v2"

	"github.com/cascadeinfer/cascade/policies"
)

// H200Cost is the iteration model of the built-in profile h200-llama-3.1-8b, which this
// package cannot import; a test of package engine/cost compares both.
func H200Cost() policies.Cost {
	return policies.Cost{D0: 0.0047037, D1: 4.2016e-6, D2: 2.7064e-5, D3: 6.6265e-10, D4: 3.135e-8}
}

// H200QoE is the QoE model of the same profile.
func H200QoE() policies.QoE {
	c := H200Cost()
	return policies.QoE{D0: c.D0, D1: c.D1, D2: c.D2 / 324, D3: c.D3 / 324, D4: c.D4}
}

// RandomWorkload returns a valid random workload with 1–7 buckets and 1–7 replicas, from
// nearly idle to overloaded, with a snapshot, and with each limit randomly on or off.
func RandomWorkload(rng *rand.Rand) policies.Workload {
	n := 1 + rng.IntN(7)
	edges := make([]policies.Tokens, n)
	for b := 1; b < n; b++ {
		edges[b] = edges[b-1]*2 + 1 + policies.Tokens(rng.IntN(100))
	}
	w := policies.Workload{
		Flow:     policies.NewFlow(edges),
		Snapshot: make([]policies.Batch, n),
		QoE:      H200QoE(),
		Cost:     H200Cost(),
		Replicas: 1 + rng.IntN(7),
	}
	spread := 3 * rng.Float64() // 0: all buckets alike
	uneven := func(mean float64) float64 {
		if rng.IntN(8) == 0 {
			return 0 // an empty bucket
		}
		return mean * math.Exp(spread*rng.NormFloat64())
	}
	load := rng.Float64() * float64(w.Replicas) / float64(n) // replicas' worth of work per bucket
	for b := range edges {
		length := float64(edges[b]) * (1 + rng.Float64())
		f := &w.Flow
		f.Tokens[b] = uneven(load / (2 * (w.Cost.D1 + w.Cost.D4*length)))
		f.Reads[b] = f.Tokens[b] * length
		f.Arrivals[b] = uneven(1)
		f.Prefill[b] = uneven(load / (4 * w.Cost.D2))
		f.Prefill2[b] = f.Prefill[b] * length
		f.Weight[b] = f.Tokens[b] / (1 + 500*rng.Float64())
		f.Crossings[b] = uneven(3)
		s := &w.Snapshot[b]
		s.N = uneven(20)
		s.SumL = s.N * length
		s.SumI = s.SumL * rng.Float64()
		s.SumI2 = s.SumI * length
	}
	some := func(x float64) float64 { // off, or around x
		if rng.IntN(2) == 0 {
			return 0
		}
		return x * math.Exp(rng.NormFloat64())
	}
	w.Cost.Kappa = some(4)
	w.Transfer = policies.Transfer{Base: some(5e-3), PerToken: some(5e-6)}
	w.Capacity = policies.Capacity{KV: 1 << 40, Batch: 1 << 40, TransferRate: some(5)}
	if rng.IntN(2) == 0 {
		w.Capacity.KV = policies.Tokens(2000 + rng.IntN(200000))
	}
	if rng.IntN(2) == 0 {
		w.Capacity.Batch = 5 + rng.IntN(200)
	}
	w.Limits = policies.Limits{Iteration: some(20e-3), Pooling: some(0.5)}
	if rng.IntN(2) == 0 {
		w.Limits.Stages = 1 + rng.IntN(4)
	}
	if rng.IntN(2) == 0 {
		w.Limits.Utilisation = 0.5 + rng.Float64()/2
	}
	return w
}

// ChatWorkload returns the flow of conversations: many short requests and a few long
// ones, prompts and outputs lognormal, scaled so that the work is the given share of
// the replicas' capacity. The requests are sampled, but always equal for equal seeds.
// Limits are open; KV holds 1M tokens.
func ChatWorkload(edges []policies.Tokens, replicas int, share float64, seed uint64) policies.Workload {
	const requests = 4000
	rng := rand.New(rand.NewPCG(seed, 7))
	w := policies.Workload{
		Flow:     policies.NewFlow(edges),
		Snapshot: make([]policies.Batch, len(edges)),
		QoE:      H200QoE(),
		Cost:     H200Cost(),
		Capacity: policies.Capacity{KV: 1 << 20, Batch: 512},
		Replicas: replicas,
		Transfer: policies.Transfer{Base: 5e-3, PerToken: 4.6e-6},
	}
	limit := float64(edges[len(edges)-1])
	f := &w.Flow
	for range requests {
		input := math.Floor(min(limit, max(1, 700*math.Exp(1.6*rng.NormFloat64()))))
		output := math.Floor(min(4000, max(1, 250*math.Exp(0.9*rng.NormFloat64()))))
		b := policies.BucketOf(edges, policies.Tokens(input))
		f.Arrivals[b]++
		f.Prefill[b] += input
		f.Prefill2[b] += input * input
		for b := range edges {
			low, high := max(float64(edges[b]), input+1), input+output+1
			if b+1 < len(edges) {
				high = min(high, float64(edges[b+1]))
			}
			if high <= low {
				continue
			}
			r := high - low
			f.Tokens[b] += r
			f.Reads[b] += r * (low + high - 1) / 2
			f.Weight[b] += r / output
			if low == float64(edges[b]) {
				f.Crossings[b]++
			}
			s := &w.Snapshot[b] // present for r iterations
			s.N += r
			s.SumI += r * input
			s.SumI2 += r * input * input
			s.SumL += r * (low + high - 1) / 2
		}
	}
	c, u := w.Cost, 0.0
	for b := range edges {
		u += c.D1*f.Tokens[b] + c.D4*f.Reads[b] + c.D2*f.Prefill[b] + c.D3*f.Prefill2[b]
	}
	scale := share * float64(replicas) / u
	for _, column := range f.Columns() {
		for b := range column {
			column[b] *= scale
		}
	}
	for b := range w.Snapshot { // iterations of about 10 ms
		s, x := &w.Snapshot[b], 0.01*scale
		*s = policies.Batch{N: s.N * x, SumI: s.SumI * x, SumI2: s.SumI2 * x, SumL: s.SumL * x}
	}
	f.Seen = requests
	return w
}
