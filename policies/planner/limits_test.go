package planner

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/policytest"
)

// TestNoPlanBeyondTheReplicas checks on random fleets, flows and iteration times that no plan
// that is adopted or rolled back to has a stage beyond what its replicas can compute, hold or
// transfer. The judge knows policies.Cost and Little's law, and nothing of package partition.
func TestNoPlanBeyondTheReplicas(t *testing.T) {
	fleets := testkit.Size(1_000, 20_000)
	decided := make(map[string]int)
	for seed := range uint64(fleets) {
		rng := rand.New(rand.NewPCG(seed, 17))
		f := newRandomFleet(rng)
		for range 12 {
			for f.now += f.planner.cfg.Period; rng.IntN(4) > 0; f.planner.Tick(f.view) {
				f.disturb(rng)
			}
			r := f.planner.Replan(f.now, f.view, nil)
			if r.Change == nil {
				continue
			}
			if r.Change.Decision == Adopted || r.Change.Decision == RolledBack {
				decided[r.Change.Reason]++
				if fault := f.judge(r.Change.Stages); fault != "" {
					t.Fatalf("seed %d, %s: %s", seed, r.Change.Reason, fault)
				}
			}
			f.setPlan(policies.Plan{Model: "m", Epoch: f.planner.Plan().Epoch + 1, Stages: r.Change.Stages})
		}
	}
	t.Log(decided)
	for _, reason := range []string{"better plan", "plan for the next period", "plan in force over its limits", "stages not worth it", "iterations slower than planned"} {
		if decided[reason] < fleets/500 {
			t.Errorf("%q was decided %d times: too few to show anything", reason, decided[reason])
		}
	}
}

// randomFleet is a planner with replicas that report whatever the test sets.
type randomFleet struct {
	planner *Planner
	view    *View
	cost    policies.Cost
	now     policies.Micros
	share   float64   // of the fleet's time that the flow takes
	weights []float64 // of the buckets' work
	slow    bool      // stages are slower than predicted
}

func newRandomFleet(rng *rand.Rand) *randomFleet {
	replicas, edges := 1+rng.IntN(24), policies.BucketEdges(1<<(10+rng.IntN(7)), 1+rng.IntN(2))
	maybe := func(x float64) float64 { // 0 for none, or around x
		if rng.IntN(2) == 0 {
			return 0
		}
		return x * math.Exp(rng.NormFloat64())
	}
	f := &randomFleet{cost: policytest.H200Cost(), share: rng.Float64(), slow: rng.IntN(3) == 0, weights: make([]float64, len(edges))}
	f.cost.Kappa = maybe(20)
	f.planner = testkit.Must(New(Config{
		Model: "m", Context: edges[len(edges)-1], Edges: edges, QoE: policytest.H200QoE(), Cost: f.cost, Transfer: policies.Transfer{Base: maybe(5e-3), PerToken: maybe(5e-6)},
		Limits: policies.Limits{Iteration: maybe(0.05), Pooling: maybe(0.3), Stages: rng.IntN(5)},
		Policy: testkit.Must(PolicyNamed([]string{PolicyDefault, PolicyDefault, "recursion", "two-phase"}[rng.IntN(4)])),
		Adopt:  []adoption.Rule{adoption.ByGain, adoption.ByGain, adoption.ByGain, adoption.Always}[rng.IntN(4)], Speed: 1, Period: 10 * policies.Second, Seen: 1,
	}))
	f.view = &View{Grace: policies.Second, HalfLife: policies.Second}
	capacity := policies.Capacity{KV: policies.Tokens(2e5 * math.Exp(rng.NormFloat64())), Batch: 8 + rng.IntN(250), TransferRate: maybe(3)}
	for i := range replicas {
		c := capacity
		if rng.IntN(4) == 0 {
			c.KV, c.Batch, c.TransferRate = 2*c.KV, 2*c.Batch, maybe(3)
		}
		id := policies.ReplicaID(fmt.Sprint("r", i))
		f.view.Replicas = append(f.view.Replicas, ReplicaView{
			Replica: policies.Replica{ID: id, Model: "m", Address: string(id), Capacity: c}, Ready: true, Reported: true,
		})
	}
	for b := range f.weights {
		f.weights[b] = math.Exp(2 * rng.NormFloat64())
	}
	f.disturb(rng)
	first, _ := f.planner.Repair(0, f.view)
	f.setPlan(policies.Plan{Model: "m", Epoch: 1, Stages: first.Stages})
	return f
}

func (f *randomFleet) setPlan(plan policies.Plan) {
	for i := range f.view.Replicas {
		f.view.Replicas[i].Stage = plan.StageOfReplica(f.view.Replicas[i].ID)
	}
	f.planner.SetPlan(f.view, plan)
}

// disturb changes the flow, which the first replica reports, and the pace of all.
func (f *randomFleet) disturb(rng *rand.Rand) {
	edges, c := f.planner.cfg.Edges, f.cost
	f.share = min(max(f.share+0.1*rng.NormFloat64(), 0.02), 1.1)
	total := 0.0
	for b := range f.weights {
		f.weights[b] *= math.Exp(0.2 * rng.NormFloat64())
		total += f.weights[b]
	}
	flow := policies.NewFlow(edges)
	for b, low := range edges {
		width := float64(max(low, 16))
		if b+1 < len(edges) {
			width = float64(edges[b+1] - low)
		}
		length := float64(low) + width*rng.Float64()
		work := f.share * f.weights[b] / total * float64(len(f.view.Replicas))
		flow.Tokens[b] = 0.6 * work / (c.D1 + c.D4*length)
		flow.Reads[b] = flow.Tokens[b] * length
		flow.Prefill[b] = 0.4 * work / c.D2
		flow.Arrivals[b] = flow.Prefill[b] / (length + 1)
		flow.Crossings[b] = flow.Tokens[b] / width // a sequence that passes a bucket generates its width
		flow.Weight[b] = flow.Tokens[b] / (1 + 500*rng.Float64())
	}
	flow.Seen = 1_000
	for i := range f.view.Replicas {
		r := &f.view.Replicas[i]
		r.Flow, r.Seen, r.Load = policies.NewFlow(edges), 0, policies.Load{Running: 1 + rng.IntN(40), Iteration: c.D0}
		if f.slow && len(f.planner.Plan().Stages) > 1 {
			r.Load.Iteration *= 20
		}
	}
	f.view.Replicas[0].Flow, f.view.Replicas[0].Seen = flow, flow.Seen
}

// judge returns what is wrong with stages under the present flow; "" if nothing is.
func (f *randomFleet) judge(stages []policies.Stage) string {
	flow, c := f.view.Replicas[0].Flow, f.cost
	for i, s := range stages {
		var tokens, reads, prefill, out, in float64 // per second, of the whole stage
		for b, low := range flow.Edges {
			if low < s.Low || low >= s.High {
				continue
			}
			tokens, reads = tokens+flow.Tokens[b], reads+flow.Reads[b]
			prefill += c.D2*flow.Prefill[b] + c.D3*flow.Prefill2[b]
			if low == s.Low && low > 0 {
				in = flow.Crossings[b]
			}
		}
		if b := slices.Index(flow.Edges, s.High); b >= 0 {
			out = flow.Crossings[b]
		}
		smallest := policies.Capacity{KV: policies.Unbounded, Batch: math.MaxInt, TransferRate: math.Inf(1)}
		for _, id := range s.Replicas {
			o := f.view.Get(id).Capacity
			smallest.KV, smallest.Batch = min(smallest.KV, o.KV), min(smallest.Batch, o.Batch)
			if o.TransferRate > 0 {
				smallest.TransferRate = min(smallest.TransferRate, o.TransferRate)
			}
		}
		k := float64(len(s.Replicas))
		tokens, reads, prefill, out, in = tokens/k, reads/k, prefill/k, out/k, in/k
		// An iteration of t seconds decodes the requests that are there, and prefills what has
		// arrived meanwhile: t = D0 + D1·n + D4·ΣL + t·prefill, n = tokens·t, ΣL = reads·t.
		t := 0.0
		for range 100_000 {
			next := c.D0 + c.D1*tokens*t + c.D4*reads*t + prefill*t
			if next-t < 1e-12*next {
				break
			}
			t = next
		}
		const rounding = 1 + 1e-6
		name := fmt.Sprintf("stage %d of %d, [%v, %v) on %v replicas", i, len(stages), s.Low, s.High, k)
		switch rate := smallest.TransferRate; {
		case c.D1*tokens+c.D4*reads+prefill >= rounding:
			return name + ": more work than time"
		case tokens*t > float64(smallest.Batch)*rounding:
			return fmt.Sprintf("%s: %v requests in a batch of %d", name, tokens*t, smallest.Batch)
		case reads*t > float64(smallest.KV)*rounding:
			return fmt.Sprintf("%s: %v tokens in a cache of %d", name, reads*t, smallest.KV)
		case out > rate*rounding:
			return fmt.Sprintf("%s: each sends %v requests a second, and can send %v", name, out, rate)
		case in*f.planner.cfg.Transfer.PerToken*float64(s.Low) > rounding || out > 0 && out*f.planner.cfg.Transfer.PerToken*float64(s.High) > rounding:
			return name + ": more KV to move than the links carry"
		case in > rate*rounding:
			return fmt.Sprintf("%s: each receives %v requests a second, and can receive %v", name, in, rate)
		}
	}
	return ""
}
