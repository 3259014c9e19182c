package place

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

// oracle runs an engine iteration by iteration: whole iterations, prompts that share one, tokens one by one.
type oracle struct {
	engine  Engine
	now     float64
	running []oracleRequest
	prompts []oracleRequest // begun
	waiting []oracleRequest
	free    int64
	cost    float64
}

type oracleRequest struct {
	length, left, output int64
	needs, kv            int64
	ready                float64
	weight, firstWeight  float64
	count                int64
}

func newOracle(e Engine, running []Running, waiting []Waiting) *oracle {
	o := &oracle{engine: e, free: int64(e.KV)}
	for _, r := range running {
		o.running = append(o.running, oracleRequest{length: int64(r.Length), kv: int64(r.Length), output: int64(r.Remaining), weight: r.Weight, count: int64(r.Count)})
		o.free -= int64(r.Length)
	}
	for _, w := range waiting {
		o.waiting = append(o.waiting, oracleRequest{
			length: int64(w.Length), left: int64(w.Length - w.Cached), needs: int64(w.Length - max(w.Cached, w.Allocated)), kv: int64(w.Allocated), output: int64(w.Output),
			ready: seconds(w.Ready), weight: w.Weight, firstWeight: w.FirstWeight, count: 1,
		})
		o.free -= int64(w.Allocated)
	}
	slices.SortStableFunc(o.waiting, func(a, b oracleRequest) int { return cmp.Compare(a.ready, b.ready) })
	return o
}

func (o *oracle) finish() float64 {
	for len(o.running)+len(o.prompts)+len(o.waiting) > 0 {
		o.step()
	}
	return o.cost
}

// step is one iteration.
func (o *oracle) step() {
	n, held, longest := int64(0), int64(0), int64(0)
	for _, r := range o.running {
		n, held, longest = n+r.count, held+r.length, max(longest, r.length)
	}
	budget, prompt := int64(o.engine.Chunk)-n, 0.0
	take := func(p *oracleRequest) {
		c := min(p.left, budget)
		at := float64(p.length - p.left)
		prompt += o.engine.prompt(at, at+float64(c))
		p.left, budget = p.left-c, budget-c
	}
	for i := range o.prompts {
		take(&o.prompts[i])
	}
	for budget > 0 && len(o.waiting) > 0 {
		p := o.waiting[0]
		if p.ready > o.now || n+int64(len(o.prompts)) > 0 && (n+int64(len(o.prompts))+1 > int64(o.engine.Batch) || p.needs > o.free) {
			break
		}
		o.waiting, o.free, p.kv = o.waiting[1:], o.free-p.needs, p.kv+p.needs
		take(&p)
		o.prompts = append(o.prompts, p)
	}
	if n+int64(len(o.prompts)) == 0 {
		o.now = o.waiting[0].ready
		return
	}
	o.now += o.engine.seconds(float64(n), float64(held), float64(longest)) + prompt
	var running []oracleRequest
	for _, r := range o.running {
		if r.output--; r.output <= 0 {
			o.cost += r.weight * o.now
			o.free += r.kv
			continue
		}
		r.length, r.kv = r.length+r.count, r.kv+r.count
		o.free -= r.count
		running = append(running, r)
	}
	o.prompts = slices.DeleteFunc(o.prompts, func(p oracleRequest) bool {
		if p.left > 0 {
			return false
		}
		o.cost += p.firstWeight * o.now
		if p.output--; p.output <= 0 {
			o.cost += p.weight * o.now
			o.free += p.kv
			return true
		}
		p.length, p.kv = p.length+1, p.kv+1
		o.free--
		running = append(running, p)
		return true
	})
	o.running = running
}

var testEngine = Engine{Cost: policies.Cost{D0: 8e-3, D1: 5e-5, D2: 4e-5, D3: 1e-10, D4: 6e-8}, Batch: 64, Chunk: 8192, KV: 200_000}

// drawEngine returns a random state of an engine.
func drawEngine(rng *rand.Rand) (running []Running, waiting []Waiting) {
	for range rng.IntN(30) {
		length := policies.Tokens(1 + rng.IntN(6000))
		out := policies.Tokens(1 + rng.IntN(400))
		running = append(running, Running{Count: 1, Length: length, Longest: length, Remaining: out, Weight: 1 / float64(out+policies.Tokens(rng.IntN(200)))})
	}
	for range max(0, rng.IntN(6)-2) {
		waiting = append(waiting, drawWaiting(rng))
	}
	return running, waiting
}

func drawWaiting(rng *rand.Rand) Waiting {
	length := policies.Tokens(1 + rng.IntN(200<<rng.IntN(8)))
	return Waiting{Length: length, Cached: policies.Tokens(rng.Int64N(int64(length))) * policies.Tokens(rng.IntN(2))}.Weigh(policies.Tokens(1 + rng.IntN(400)))
}

func modelOf(e *Engine, running []Running, waiting []Waiting) *Model {
	m := &Model{}
	m.Reset(e, 0)
	for _, r := range running {
		m.AddRunning(r)
	}
	for _, w := range waiting {
		m.AddWaiting(w)
	}
	return m
}

// TestModelAgainstOracle compares the Model with what happens iteration by iteration. Where a prompt gets ready during
// an iteration, the Model does not wait for its end.
func TestModelAgainstOracle(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		e := testEngine
		e.Skew = float64(i%3) * 0.25
		if i%5 == 0 {
			e.Batch, e.Chunk, e.KV = 12, 512, 30_000 // prompts wait for places and for memory
		}
		running, waiting := drawEngine(rng)
		tolerance := 0.002
		if i%7 == 0 {
			tolerance = 0.02
			for j := range waiting {
				waiting[j].Ready = policies.Micros(rng.IntN(2_000_000))
			}
		}
		w := drawWaiting(rng)
		for _, all := range [][]Waiting{waiting, append(slices.Clone(waiting), w)} {
			want, got := newOracle(e, running, all).finish(), modelOf(&e, running, all).Finish()
			if math.Abs(got-want) > tolerance*want+1e-9 {
				t.Fatalf("case %d: %d running, waiting %+v: the model says %v, the oracle %v", i, len(running), all, got, want)
			}
		}
	}
}

// TestModelGroups compares one group of equal sequences with as many groups of one.
func TestModelGroups(t *testing.T) {
	single := make([]Running, 7)
	for i := range single {
		single[i] = Running{Count: 1, Length: 1000, Longest: 1000, Remaining: 250, Weight: 0.004}
	}
	group := []Running{{Count: 7, Length: 7000, Longest: 1000, Remaining: 250, Weight: 7 * 0.004}}
	w := []Waiting{Waiting{Length: 3000}.Weigh(100)}
	if one, many := modelOf(&testEngine, group, w).Finish(), modelOf(&testEngine, single, w).Finish(); math.Abs(one-many) > 1e-9 {
		t.Errorf("a group costs %v, its sequences %v", one, many)
	}
}

// TestModelAdvance checks that a model that is moved on in steps ends as one that is not.
func TestModelAdvance(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 50 {
		running, waiting := drawEngine(rng)
		whole, steps := modelOf(&testEngine, running, waiting), modelOf(&testEngine, running, waiting)
		whole.run(math.Inf(1))
		for now := policies.Micros(0); len(steps.running) > steps.ended || len(steps.waiting) > steps.started; now += policies.Micros(rng.IntN(300_000)) {
			steps.Advance(now)
			if held := steps.Held(); held < 0 {
				t.Fatalf("%d tokens held", held)
			}
		}
		if whole.cost > 0 && math.Abs(steps.cost-whole.cost) > 1e-3*whole.cost {
			t.Fatalf("in steps the ends cost %v, at once %v", steps.cost, whole.cost)
		}
	}
}

// BenchmarkPrice prices a request at a replica that runs 30 sequences.
func BenchmarkPrice(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	v := newPriced()
	var running []Running
	for range 30 {
		length, out := policies.Tokens(1+rng.IntN(6000)), policies.Tokens(1+rng.IntN(400))
		running = append(running, Running{Count: 1, Length: length, Longest: length, Remaining: out, Weight: 1 / float64(out)})
	}
	v.Report(0, &State{Running: running})
	w := Waiting{Length: 1000}.Weigh(200)
	b.ReportAllocs()
	for b.Loop() {
		v.price(0, w)
	}
}
