package cost

import (
	"math"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// skewRows is a grid of 2 and 8 sequences, up to 512 and 2,048 tokens.
const skewRows = `regime,n,kv_big,kv_mean,t_mean_us,t_skew_us,t_max_us
pure,2,512,256,100,110,200
pure,2,512,384,100,130,200
pure,8,512,256,100,120,200
pure,8,512,384,100,120,200
pure,2,2048,1024,100,150,200
pure,2,2048,1536,100,150,200
pure,8,2048,1024,100,90,200
pure,8,2048,1536,100,90,200
pure,2,256,128,100,190,200
mixed,8,2048,1536,100,900,200
`

// TestAttentionCases compares with the formulas by hand.
func TestAttentionCases(t *testing.T) {
	table, err := ReadSkew(strings.NewReader(skewRows))
	testkit.NoError(t, err)
	p := Profile{D0: 1, D1: 0.1, D2: 0.01, D3: 1e-6, D4: 1e-3, Kappa: 5}
	const base = 1 + 0.2 // D0 + 2·D1
	pair := func(held, longest int) Iteration {
		return Iteration{Decodes: 2, Held: policies.Tokens(held), Longest: policies.Tokens(longest)}
	}
	for _, c := range []struct {
		kind    AttentionCase
		it      Iteration
		want    float64
		outside uint64
	}{
		{SumOnly, pair(512, 512), base + 0.512, 0},
		{SumOnly, Iteration{Decodes: 1, Held: 500, Longest: 500}, 1.1 + 0.5, 0},
		{TenPercent, pair(512, 512), base + 0.512*1.1, 0},
		{TenPercent, Iteration{Decodes: 1, Held: 500, Longest: 500}, 1.1 + 0.5, 0},
		{TenPercent, Iteration{Prefill: 10, Prefill2: 100}, 1 + 0.1 + 0.0001, 0},
		{Stress, pair(600, 500), base + 0.6 + 0.5*0.4, 0},
		{MeasuredSkew, pair(512, 512), base + 0.512 + 0.1*0.512, 0},                      // the first row
		{MeasuredSkew, pair(640, 512), base + 0.640 + 0.2*(1.024-0.640), 0},              // half way to the second
		{MeasuredSkew, pair(1024, 1024), base + 1.024 + 0.3*1.024, 0},                    // half way in longest
		{MeasuredSkew, pair(300, 512), base + 0.300 + 0.1*(1.024-0.300), 1},              // mean below the table
		{MeasuredSkew, pair(1000, 512), base + 1.000 + 0.3*(1.024-1.000), 1},             // above
		{MeasuredSkew, pair(1024, 512), base + 1.024, 0},                                 // equal lengths
		{MeasuredSkew, pair(4096, 4096), base + 4.096 + 0.5*4.096, 1},                    // longer
		{MeasuredSkew, pair(256, 256), base + 0.256 + 0.1*0.256, 1},                      // shorter
		{MeasuredSkew, Iteration{Decodes: 8, Held: 8192, Longest: 2048}, 1.8 + 8.192, 0}, // noise below 0
		{MeasuredSkew, Iteration{Decodes: 4, Held: 1024, Longest: 512}, 1.4 + 1.024 + 0.15*1.024, 0},
		{MeasuredSkew, Iteration{Decodes: 16, Held: 4096, Longest: 512}, 2.6 + 4.096 + 0.2*4.096, 1},
	} {
		a, err := NewAttention(p, c.kind, DefaultStress, table)
		testkit.NoError(t, err)
		if got := a.Seconds(c.it); math.Abs(got-c.want) > 1e-12 || a.Batches().Outside != c.outside {
			t.Errorf("%v, %+v: %v s, %d outside; want %v and %d", c.kind, c.it, got, a.Batches().Outside, c.want, c.outside)
		}
	}
}

func TestBadSkew(t *testing.T) {
	for text, want := range map[string]string{
		"regime,n\n": `no column "kv_big"`,
		skewRows[:strings.Index(skewRows, "pure")]:  `no row of regime "pure"`,
		skewRows + "pure,4,4096,2000,100,110,200\n": "no longest length",
		skewRows + "pure,4,512,x,100,110,200\n":     `line 12, column "kv_mean": "x"`,
		skewRows + "pure,4,512,600,100,110,200\n":   "line 12: n must",
		skewRows + "pure,4,512,300,0,110,200\n":     "line 12: times must",
	} {
		if _, err := ReadSkew(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := NewAttention(Profile{}, MeasuredSkew, 0, nil); err == nil {
		t.Error("measured without a table")
	}
	if _, err := ParseAttentionCase("x"); err == nil {
		t.Error("unknown case")
	}
	for i, name := range AttentionCases() {
		if c, err := ParseAttentionCase(name); err != nil || c != AttentionCase(i) || c.String() != name {
			t.Errorf("%s: %v, %v", name, c, err)
		}
	}
}
