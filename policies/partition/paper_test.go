package partition_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/policytest"
)

// paperCase is the input of the paper's planner: requests by bucket, E instances, D0…D4, and the
// transfer delay c of a cut before each bucket.
type paperCase struct {
	buckets  [][]policies.Sequence
	replicas int
	d        [5]float64
	cut      []float64
}

// quality is e·Q^(n/e) of the requests in buckets [low, high), from eq. 1: e instances, each with
// an even part of the requests, Q^B = n·Σ Dk·Fk.
func (c paperCase) quality(low, high, e int) float64 {
	var f [5]float64
	f[0] = 1
	for _, bucket := range c.buckets[low:high] {
		for _, s := range bucket {
			f[1] += 1 / float64(e)
			f[2] += float64(s.Input) / float64(e)
			f[3] += float64(s.Input) * float64(s.Input) / float64(e)
			f[4] += float64(s.Length) / float64(e)
		}
	}
	sum := 0.0
	for k := range f {
		sum += c.d[k] * f[k]
	}
	return float64(e) * f[1] * sum
}

// best is min f(s, e, l) over the numbers of stages s ≤ most, by the recursion as printed: of the
// last stage it tries every beginning and every number of instances.
func (c paperCase) best(most, e, l int) float64 {
	if l == 0 && e == 0 {
		return 0
	}
	least := math.Inf(1)
	if most == 0 || l == 0 || e == 0 {
		return least
	}
	for before := range l {
		for used := range e {
			rest := c.best(most-1, used, before)
			if math.IsInf(rest, 1) {
				continue
			}
			least = min(least, rest+c.quality(before, l, e-used)+c.cut[before])
		}
	}
	return least
}

// same reports whether two prices or gains differ at most by rounding.
func same(a, b float64) bool { return math.Abs(a-b) < 1e-12 }

// paperStage is a stage of the heuristic: buckets [low, high) on e instances.
type paperStage struct{ low, high, e int }

func (c paperCase) price(s paperStage) float64 { return c.quality(s.low, s.high, s.e) + c.cut[s.low] }

// chain is phase one: of all divisions into exactly s stages of one instance, the best. tied says
// that the paper leaves open which one.
func (c paperCase) chain(s, l int) (stages []paperStage, price float64, tied bool) {
	if s == 0 {
		if l == 0 {
			return nil, 0, false
		}
		return nil, math.Inf(1), false
	}
	price = math.Inf(1)
	for before := range l {
		rest, p, t := c.chain(s-1, before)
		if math.IsInf(p, 1) {
			continue
		}
		last := paperStage{before, l, 1}
		p += c.price(last)
		switch {
		case same(p, price):
			tied = true
		case p < price:
			stages, price, tied = append(slices.Clone(rest), last), p, t
		}
	}
	return stages, price, tied
}

// twoPhase is the heuristic: the chain, then the merge of the neighbours with the highest gain
// while there is one; then, past the paper, while there are more stages than most. Instances
// beyond one a bucket go where they save most, as TwoPhase documents. tied says that some choice
// was between equals: with empty buckets, two merges may gain the same.
func (c paperCase) twoPhase(most int) (stages []paperStage, tied bool) {
	stages, _, tied = c.chain(min(c.replicas, len(c.buckets)), len(c.buckets))
	for range c.replicas - len(stages) {
		at, saves := 0, math.Inf(-1)
		for i, s := range stages {
			x := c.price(s) - c.price(paperStage{s.low, s.high, s.e + 1})
			if tied = tied || same(x, saves); x > saves {
				at, saves = i, x
			}
		}
		stages[at].e++
	}
	for len(stages) > 1 {
		at, gain := 0, math.Inf(-1)
		for i := range stages[1:] {
			a, b := stages[i], stages[i+1]
			g := c.price(a) + c.price(b) - c.price(paperStage{a.low, b.high, a.e + b.e})
			if tied = tied || same(g, gain) || same(g, 0); g > gain {
				at, gain = i, g
			}
		}
		if gain <= 0 && len(stages) <= most {
			break
		}
		stages[at] = paperStage{stages[at].low, stages[at+1].high, stages[at].e + stages[at+1].e}
		stages = slices.Delete(stages, at+1, at+2)
	}
	return stages, tied
}

// randomPaperCase draws a case, and the same as a workload.
func randomPaperCase(rng *rand.Rand) (paperCase, policies.Workload) {
	n := 1 + rng.IntN(6)
	edges := []policies.Tokens{0}
	for b := 1; b < n; b++ {
		edges = append(edges, policies.Tokens(32<<b))
	}
	m := policytest.H200QoE()
	shift := func() float64 { return math.Exp(2 * rng.NormFloat64()) }
	m = policies.QoE{D0: m.D0, D1: m.D1 * shift(), D2: m.D2 * shift(), D3: m.D3 * shift(), D4: m.D4 * shift()}
	c := paperCase{buckets: make([][]policies.Sequence, n), cut: make([]float64, n), replicas: 1 + rng.IntN(7), d: [5]float64{m.D0, m.D1, m.D2, m.D3, m.D4}}
	w := policies.Workload{
		Flow: policies.NewFlow(edges), Snapshot: make([]policies.Batch, n), QoE: m, Cost: policytest.H200Cost(),
		Capacity: policies.Capacity{KV: 1 << 50, Batch: 1 << 50}, Replicas: c.replicas,
		Transfer: policies.Transfer{Base: 0.01 * rng.Float64(), PerToken: 5e-6 * rng.Float64()},
	}
	if rng.IntN(3) == 0 {
		w.Limits.Stages = 1 + rng.IntN(4)
	}
	empty := rng.IntN(4) // 0: buckets may be empty
	for b := range edges {
		for range rng.IntN(6)*rng.IntN(6) + empty {
			high := 2 * edges[b]
			if b == 0 {
				high = 64
			}
			length := edges[b] + 1 + policies.Tokens(rng.Int64N(int64(high-edges[b])))
			s := policies.Sequence{Input: 1 + policies.Tokens(rng.Int64N(int64(length))), Length: length}
			c.buckets[b] = append(c.buckets[b], s)
			w.Snapshot[b] = w.Snapshot[b].Add(s.Input, s.Length)
		}
		if b > 0 && rng.IntN(3) > 0 {
			w.Flow.Crossings[b] = 4 * shift()
		}
	}
	// c is the delay of the sequences that straddle the cut: the transfers of one second, each
	// Base + length·PerToken, in the unit of Q, the delay per token that a request experiences.
	token := c.quality(0, n, c.replicas) / float64(max(1, len(slices.Concat(c.buckets...))))
	if token == 0 {
		token = m.D0
	}
	for b := 1; b < n; b++ {
		c.cut[b] = w.Flow.Crossings[b] * (w.Transfer.Base + w.Transfer.PerToken*float64(edges[b])) * token
	}
	return c, w
}

// TestPaperPlanner compares the paper's planner, exact, in two phases and in the first one alone, with the
// formulas of the paper.
func TestPaperPlanner(t *testing.T) {
	const inputs = 10_000
	rng := rand.New(rand.NewPCG(15, 3))
	split, heuristic, worse, moved := 0, 0, 0, 0
	for i := 0; i < inputs; {
		c, w := randomPaperCase(rng)
		limit := policies.MaxStages
		if w.Limits.Stages > 0 {
			limit = w.Limits.Stages
		}
		want := c.best(limit, c.replicas, len(c.buckets))
		for _, p := range []policies.Partitioner{partition.Recursion{Objective: partition.Snapshot}, partition.Exact{Objective: partition.Snapshot}} {
			got := testkit.Must(p.Partition(w))
			if !equal(got.Cost, want) {
				t.Fatalf("input %d, %T: cost %v, by the recursion %v\n%+v", i, p, got.Cost, want, w)
			}
			if len(got.Cuts) > 0 {
				split++
			}
		}
		free := w
		free.Transfer = policies.Transfer{}
		if a, b := testkit.Must(partition.Exact{Objective: partition.Snapshot}.Partition(w)), testkit.Must(partition.Exact{Objective: partition.Snapshot}.Partition(free)); !slices.Equal(a.Cuts, b.Cuts) {
			moved++
		}

		// The first phase alone, with as many stages as there may be.
		chain, most := testkit.Must(partition.TwoPhase{Objective: partition.Snapshot}.Chain(w)), min(c.replicas, len(c.buckets), limit)
		_, price, _ := c.chain(most, len(c.buckets))
		dealt := 0
		for _, n := range chain.Counts {
			dealt += n
		}
		if len(chain.Counts) != most || dealt != c.replicas || c.replicas == most && !equal(chain.Cost, price) {
			t.Fatalf("input %d: a chain of %v for %v, by the paper of %d stages for %v", i, chain.Counts, chain.Cost, most, price)
		}
		got := testkit.Must(partition.TwoPhase{Objective: partition.Snapshot}.Partition(w))
		var cuts []policies.Tokens
		var counts []int
		price = 0.0
		stages, tied := c.twoPhase(limit)
		if tied {
			continue // the paper does not say which
		}
		i++
		for s, x := range stages {
			if counts, price = append(counts, x.e), price+c.price(x); s > 0 {
				cuts = append(cuts, w.Flow.Edges[x.low])
			}
		}
		if !equal(got.Cost, price) {
			t.Fatalf("input %d, two phases: %v at %v for %v, by the paper %v at %v for %v\n%+v", i, got.Counts, got.Cuts, got.Cost, counts, cuts, price, w)
		}
		if len(cuts) > 0 {
			heuristic++
		}
		if price > want*(1+1e-9) {
			worse++
		}
	}
	t.Logf("%d inputs: %d of both exact plans split, %d of the heuristic's, %d of these not the best; the transfer delay changes %d cuts", inputs, split, heuristic, worse, moved)
	if split < inputs/2 || heuristic < inputs/5 || worse < inputs/100 || moved < inputs/10 {
		t.Error("the inputs are too easy")
	}
}
