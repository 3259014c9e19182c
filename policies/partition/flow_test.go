package partition_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
)

// event is one thing that happened: a token or a request.
type event struct {
	at     float64
	column int
	bucket int
	amount float64
}

// The columns of policies.Flow.
const (
	arrivals = iota
	tokens
	reads
	prefill
	prefill2
	weight
	crossings
)

// flowOracle stores every event and sums all of them for every query.
type flowOracle struct {
	edges  []policies.Tokens
	tau    float64
	start  float64
	events []event
	seen   uint64
}

func (o *flowOracle) bucket(t policies.Tokens) int {
	at := 0
	for b, e := range o.edges {
		if e <= t {
			at = b
		}
	}
	return at
}

func (o *flowOracle) add(at float64, column int, t policies.Tokens, amount float64) {
	o.events = append(o.events, event{at, column, o.bucket(t), amount})
}

func (o *flowOracle) arrive(now float64, input, cached policies.Tokens) {
	o.seen++
	o.add(now, arrivals, input, 1)
	o.prefill(now, input, cached)
}

func (o *flowOracle) prefill(now float64, input, cached policies.Tokens) {
	o.add(now, prefill, input, float64(input-cached))
	o.add(now, prefill2, input, float64(input*input-cached*cached))
}

func (o *flowOracle) generate(now float64, length policies.Tokens, n int) {
	for l := length - policies.Tokens(n) + 1; l <= length; l++ {
		o.add(now, tokens, l, 1)
		o.add(now, reads, l, float64(l))
		for b := 1; b < len(o.edges); b++ {
			if o.edges[b] == l {
				o.add(now, crossings, l, 1)
			}
		}
	}
}

func (o *flowOracle) finish(now float64, input, output policies.Tokens) {
	for l := input + 1; l <= input+output; l++ {
		o.add(now, weight, l, 1/float64(output))
	}
}

func (o *flowOracle) flow(now float64) policies.Flow {
	f := policies.NewFlow(o.edges)
	f.Seen = o.seen
	observed := 1 - math.Exp(-(now-o.start)/o.tau)
	if observed == 0 {
		return f
	}
	for _, e := range o.events {
		f.Columns()[e.column][e.bucket] += e.amount * math.Exp(-(now-e.at)/o.tau) / (o.tau * observed)
	}
	return f
}

// sameFlow compares two flows, cell by cell, up to rounding.
func sameFlow(t *testing.T, got, want policies.Flow) {
	t.Helper()
	testkit.NoError(t, got.Validate())
	if got.Seen != want.Seen {
		t.Fatalf("seen %d, want %d", got.Seen, want.Seen)
	}
	for i, column := range got.Columns() {
		for b, g := range column {
			if w := want.Columns()[i][b]; math.Abs(g-w) > 1e-9*max(math.Abs(g), math.Abs(w))+1e-250 {
				t.Fatalf("column %d of bucket %d: %v, want %v", i, b, g, w)
			}
		}
	}
}

// TestCounterEqualsOracle applies random traffic to both, including gaps far beyond the
// renormalisation.
func TestCounterEqualsOracle(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 60 {
		tau := math.Exp(2 * rng.NormFloat64())
		edges := policies.BucketEdges(600, 1+rng.IntN(4))
		now := 1000 * rng.NormFloat64() // any scale, negative too
		c := partition.NewFlowCounter(edges, tau)
		o := &flowOracle{edges: edges, tau: tau, start: now}
		sameFlow(t, c.Rates(now), o.flow(now))
		for range 150 {
			switch rng.IntN(20) {
			case 0:
				now += tau * 40 * rng.Float64()
			case 1, 2, 3:
				// several events at once
			default:
				now += tau * 0.1 * rng.ExpFloat64()
			}
			input := policies.Tokens(rng.IntN(700))
			switch rng.IntN(5) {
			case 0:
				cached := policies.Tokens(rng.IntN(int(input) + 1))
				c.CountArrival(now, input, cached)
				o.arrive(now, input, cached)
			case 2:
				cached := policies.Tokens(rng.IntN(int(input) + 1))
				c.CountPrefill(now, input, cached)
				o.prefill(now, input, cached)
			case 1:
				output := policies.Tokens(rng.IntN(300))
				c.CountFinish(now, input, output)
				o.finish(now, input, output)
			default:
				n := 1 + rng.IntN(4)
				if rng.IntN(5) == 0 {
					n = rng.IntN(300)
				}
				length := max(input, 1)
				n = min(n, int(length))
				c.CountTokens(now, length, n)
				o.generate(now, length, n)
			}
			if rng.IntN(10) == 0 {
				sameFlow(t, c.Rates(now), o.flow(now))
			}
		}
		now += tau * rng.Float64()
		sameFlow(t, c.Rates(now), o.flow(now))
	}
}

// TestGenerateAtEdges compares the counts around an edge with counts by hand.
func TestGenerateAtEdges(t *testing.T) {
	edges := []policies.Tokens{0, 16, 32}
	for _, x := range []struct {
		length          policies.Tokens
		n               int
		tokens, crossed [3]float64
	}{
		{15, 1, [3]float64{1, 0, 0}, [3]float64{0, 0, 0}},
		{16, 1, [3]float64{0, 1, 0}, [3]float64{0, 1, 0}},
		{17, 1, [3]float64{0, 1, 0}, [3]float64{0, 0, 0}},
		{17, 2, [3]float64{0, 2, 0}, [3]float64{0, 1, 0}},
		{17, 3, [3]float64{1, 2, 0}, [3]float64{0, 1, 0}},
		{40, 40, [3]float64{15, 16, 9}, [3]float64{0, 1, 1}},
		{40, 99, [3]float64{15, 16, 9}, [3]float64{0, 1, 1}}, // no token is below 1
		{40, 0, [3]float64{}, [3]float64{}},
		{40, -1, [3]float64{}, [3]float64{}},
		{0, 3, [3]float64{}, [3]float64{}},
		{-5, 3, [3]float64{}, [3]float64{}},
	} {
		c := partition.NewFlowCounter(edges, 1)
		c.Rates(0)
		c.CountTokens(1, x.length, x.n)
		f := c.Rates(1)
		unit := 1 - math.Exp(-1) // one event now, in a window of 1 s and τ = 1 s
		for b := range edges {
			if g := f.Tokens[b] * unit; math.Abs(g-x.tokens[b]) > 1e-9 {
				t.Errorf("%d tokens to %v: %v tokens in bucket %d, want %v", x.n, x.length, g, b, x.tokens[b])
			}
			if g := f.Crossings[b] * unit; math.Abs(g-x.crossed[b]) > 1e-9 {
				t.Errorf("%d tokens to %v: %v crossings of edge %d, want %v", x.n, x.length, g, b, x.crossed[b])
			}
		}
	}
}

func TestOddArguments(t *testing.T) {
	c := partition.NewFlowCounter([]policies.Tokens{0, 16}, 0)
	c.CountArrival(5, 10, 99) // more cached tokens than there are: all count as cached
	c.CountArrival(4, -3, -2) // an earlier time counts as the latest
	c.CountArrival(math.NaN(), 10, -2)
	c.CountPrefill(5, 10, 99)
	c.CountPrefill(5, -3, 7)
	c.CountFinish(5, 10, 0)
	c.CountFinish(5, -7, 1)
	f := c.Rates(5 + partition.DefaultTau)
	unit := partition.DefaultTau * (1 - math.Exp(-1)) * math.E
	if err := f.Validate(); err != nil || f.Seen != 3 {
		t.Fatalf("%+v, %v", f, err)
	}
	if g := f.Prefill[0] * unit; math.Abs(g-10) > 1e-9 {
		t.Errorf("prefill %v, want 10", g)
	}
	if g := f.Weight[0] * unit; math.Abs(g-1) > 1e-9 {
		t.Errorf("weight %v, want 1", g)
	}
}

func TestAllocations(t *testing.T) {
	c := partition.NewFlowCounter(policies.BucketEdges(131072, 8), 0)
	now := 0.0
	if n := testing.AllocsPerRun(1000, func() {
		now++
		c.CountArrival(now, 900, 100)
		c.CountPrefill(now, 900, 100)
		c.CountTokens(now, 1030, 1)
		c.CountTokens(now, 9000, 8000)
		c.CountFinish(now, 900, 8100)
	}); n != 0 {
		t.Errorf("%v allocations for five events", n)
	}
}

// FuzzCounter checks that no call leads to an invalid flow.
func FuzzCounter(f *testing.F) {
	f.Add(1.0, int64(100), int64(10), 5, 2.0)
	f.Add(-1e300, int64(math.MaxInt64), int64(math.MaxInt64), math.MaxInt, 1e300)
	f.Fuzz(func(t *testing.T, at float64, input, other int64, n int, later float64) {
		if math.IsInf(at, 0) || math.IsInf(later, 0) {
			return // the contract requires finite times
		}
		c := partition.NewFlowCounter([]policies.Tokens{0, 16, 1000}, 30)
		a, b := policies.Tokens(input), policies.Tokens(other)
		c.CountArrival(at, a, b)
		c.CountPrefill(at, b, a)
		c.CountTokens(at, a, n)
		c.CountFinish(at, a, b)
		c.CountTokens(later, b, n)
		if err := c.Rates(later).Validate(); err != nil {
			t.Error(err)
		}
		if err := c.Rates(math.NaN()).Validate(); err != nil {
			t.Error(err)
		}
	})
}

func BenchmarkCounter(b *testing.B) {
	c, now := partition.NewFlowCounter(policies.BucketEdges(131072, 8), 0), 0.0
	length := policies.Tokens(100)
	for name, count := range map[string]func(){
		"tokens": func() {
			if length++; length > 131072 {
				length = 100
			}
			c.CountTokens(now, length, 1)
		},
		"arrival": func() { c.CountArrival(now, 900, 100) },
		"finish":  func() { c.CountFinish(now, 900, 800) },
		"rates":   func() { c.Rates(now) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				now += 1e-3
				count()
			}
		})
	}
}
