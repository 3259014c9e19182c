package trace

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

func generate(t testing.TB, g Generator) []Request {
	t.Helper()
	requests, err := g.Generate()
	testkit.NoError(t, err)
	testkit.NoError(t, holds(requests))
	return requests
}

// TestNamedMixes compares the built-in mixes with the published figures of the traces to which they
// are fitted.
func TestNamedMixes(t *testing.T) {
	for name, want := range map[string]struct{ in50, in90, out50, out90, repeated float64 }{
		"chat":         {1020, 2734, 129, 424, 0},
		"conversation": {6909, 27367, 350, 597, 0.374},
		"assistant":    {2650, 6554, 331, 590, 0.388},
		"agent":        {46248, 61646, 204, 690, 0.914},
	} {
		g, ok := Named(name)
		if !ok {
			t.Fatalf("no mix %q", name)
		}
		g.Requests, g.Seed = 12000, 9
		got := generate(t, g)
		in := sorted(got, func(r Request) float64 { return float64(r.Input) })
		out := sorted(got, func(r Request) float64 { return float64(r.Output) })
		for _, c := range []struct {
			what      string
			got, want float64
		}{
			{"input p50", quantile(in, 0.5), want.in50}, {"input p90", quantile(in, 0.9), want.in90},
			{"output p50", quantile(out, 0.5), want.out50}, {"output p90", quantile(out, 0.9), want.out90},
			{"rate", Rate(got), g.Rate},
		} {
			if math.Abs(c.got/c.want-1) > 0.08 {
				t.Errorf("%s: %s is %.4g, the trace has %.4g", name, c.what, c.got, c.want)
			}
		}
		if r := repeated(got); math.Abs(r-want.repeated) > 0.06 {
			t.Errorf("%s: %.3f of the prompt tokens repeat a prefix, the trace has %.3f", name, r, want.repeated)
		}
	}
	for _, name := range Names() {
		if _, ok := Named(name); !ok {
			t.Errorf("Names lists %q, which Named does not know", name)
		}
	}
	if _, ok := Named("nonesuch"); ok {
		t.Error("Named knows a mix that does not exist")
	}
}

func TestGenerateIsDeterministic(t *testing.T) {
	g, _ := Named("mixed")
	g.Duration, g.Seed = 5*time.Minute, 1
	first := generate(t, g)
	if !cmp.Equal(first, generate(t, g)) {
		t.Error("equal generators give different traces")
	}
	if last := first[len(first)-1].At; last > g.Duration || last < g.Duration/2 {
		t.Errorf("the last request of 5 min arrives at %v", last)
	}
	// A different class proportion must not change the arrivals.
	g.Classes[0].Share = 0.5
	for i, r := range generate(t, g) {
		if r.At != first[i].At {
			t.Fatalf("request %d arrives at %v, and at %v with other shares", i, r.At, first[i].At)
		}
	}
	g.Seed = 2
	if cmp.Equal(first, generate(t, g)) {
		t.Error("the seed changes nothing")
	}
}

// TestPrefixesExtend checks that equal ids represent equal prefixes: an id has the same predecessor
// in all prompts.
func TestPrefixesExtend(t *testing.T) {
	g, _ := Named("mixed")
	g.Requests = 5000
	before := make(map[uint64]uint64)
	shared := 0
	for i, r := range generate(t, g) {
		if len(r.Prefix) > 0 && len(r.Prefix) != blocks(r.Input) {
			t.Fatalf("request %d: %d ids for %d tokens", i, len(r.Prefix), r.Input)
		}
		for j, id := range r.Prefix {
			parent := uint64(math.MaxUint64)
			if j > 0 {
				parent = r.Prefix[j-1]
			}
			if known, ok := before[id]; ok {
				shared++
				if known != parent {
					t.Fatalf("request %d: block %d follows %d here and %d elsewhere", i, id, parent, known)
				}
			}
			before[id] = parent
		}
	}
	if shared == 0 {
		t.Error("no block is shared")
	}
}

// TestFitRecovers fits a generator to the output of a known one.
func TestFitRecovers(t *testing.T) {
	known := Generator{
		Name: "known", Rate: 20, GapCV: 2, Swing: 0.3, Requests: testkit.Size(15000, 40000), Seed: 3,
		Classes: []Class{{
			Share: 1,
			Lengths: []Lognormal{
				{Weight: 3, Input: 8, Output: 4, InputSD: 0.3, OutputSD: 0.5, Corr: 0.8},
				{Weight: 1, Input: 11, Output: 6, InputSD: 0.5, OutputSD: 0.2, Corr: -0.5},
			},
			Input: Range{1, 1e6}, Output: Range{1, 1e4},
			Prefix: Prefix{System: 1024, Continue: 0.4, Growth: 6, GrowthSD: 0.5, Recent: 200},
		}},
	}
	real := generate(t, known)
	g, err := Fit(real, FitConfig{Name: "known", Components: 2, Seed: 1})
	testkit.NoError(t, err)
	close := func(what string, got, want, by float64) {
		if !(math.Abs(got-want) <= by) {
			t.Errorf("%s is %.3f, not %.3f ± %.3f", what, got, want, by)
		}
	}
	close("rate", g.Rate, 20, 1.5)
	close("gap CV", g.GapCV, 2, 0.2)
	close("swing", g.Swing, 0.3, 0.1)
	l := g.Classes[0].Lengths
	if len(l) != 2 {
		t.Fatalf("%d components", len(l))
	}
	close("weight", l[0].Weight, 0.75, 0.01)
	close("input", l[0].Input, 8, 0.02)
	close("input sd", l[0].InputSD, 0.3, 0.02)
	close("corr", l[0].Corr, 0.8, 0.03)
	close("output of the second", l[1].Output, 6, 0.02)
	close("corr of the second", l[1].Corr, -0.5, 0.05)
	close("continue", g.Classes[0].Prefix.Continue, 0.4, 0.05)

	g.Requests, g.Seed = known.Requests/2, 4
	if q := Compare(real, generate(t, g)); q.InputKS > 0.02 || q.OutputKS > 0.02 {
		t.Errorf("the refit is far off:\n%s", q)
	}
}

// TestArrivalsAreBursty checks the burstiness against the theory: counts of a
// renewal process have a dispersion of CV² in long windows.
func TestArrivalsAreBursty(t *testing.T) {
	g, _ := Named("chat")
	g.Requests, g.Rate, g.Swing = 30000, 20, 0
	for _, cv := range []float64{0.5, 1, 3} {
		g.GapCV = cv
		if d := dispersion(generate(t, g), 10*time.Second); math.Abs(d/(cv*cv)-1) > 0.3 {
			t.Errorf("gaps of CV %v give a dispersion of %.2f, not %.2f", cv, d, cv*cv)
		}
	}
}

func TestGeneratorErrors(t *testing.T) {
	for want, change := range map[string]func(*Generator){
		"rate":         func(g *Generator) { g.Rate = 0 },
		"gap_cv":       func(g *Generator) { g.GapCV = math.NaN() },
		"swing":        func(g *Generator) { g.Swing = -1 },
		"requests":     func(g *Generator) { g.Requests = -1 },
		"a duration":   func(g *Generator) { g.Requests = 0 },
		"one class":    func(g *Generator) { g.Classes = nil },
		"share":        func(g *Generator) { g.Classes[0].Share = 0 },
		"input range":  func(g *Generator) { g.Classes[0].Input.Min = 0 },
		"output range": func(g *Generator) { g.Classes[0].Output.Max = 0 },
		"no component": func(g *Generator) { g.Classes[0].Lengths = nil },
		"corr":         func(g *Generator) { g.Classes[0].Lengths[0].Corr = 1 },
		"lengths[0]":   func(g *Generator) { g.Classes[0].Lengths[0].InputSD = math.Inf(1) },
		"prefix":       func(g *Generator) { g.Classes[0].Prefix.Continue = 2 },
	} {
		g, _ := Named("chat")
		g.Requests = 1
		change(&g)
		_, err := g.Generate()
		testkit.WantError(t, err, want)
	}
}

func TestFitErrors(t *testing.T) {
	_, err := Fit(make([]Request, 3), FitConfig{Name: "few"})
	testkit.WantError(t, err, "fit few: 3 requests")
	if _, err := Fit(make([]Request, 1000), FitConfig{Components: -1}); err == nil {
		t.Error("a negative number of components is taken")
	}
}
