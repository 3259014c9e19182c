package cost

import (
	"math"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

func near(got, want, tolerance float64) bool {
	return math.Abs(got-want) <= tolerance*math.Abs(want)
}

const valid = `{"name":"m","source":"s","unit":"seconds","d0":0.01,"d1":1e-6,"d2":1e-5,"d3":1e-10,"d4":1e-8,"kappa":0,"kv_bytes_per_token":131072,"kv_tokens":1000,"max_batch":8,"weight_bytes":1000,"weight_seconds":0.008}`

func TestReadNamesTheField(t *testing.T) {
	if p, err := Read(strings.NewReader(valid)); err != nil || p.Ranks != 1 {
		t.Fatalf("valid profile: %+v, %v", p, err)
	}
	for _, x := range []struct{ old, new, want string }{
		{`"name":"m"`, `"name":""`, `"name"`},
		{`"seconds"`, `"us"`, `"unit"`},
		{`"d0":0.01`, `"d0":0`, `"d0"`},
		{`"d0":0.01`, `"d0":"fast"`, `"d0"`},
		{`"d4":1e-8`, `"d4":-1`, `"d4"`},
		{`"kappa":0`, `"kapa":0`, `"kapa"`},
		{`"kv_tokens":1000`, `"kv_tokens":0`, `"kv_tokens"`},
		{`"kv_bytes_per_token":131072`, `"kv_bytes_per_token":0`, `"kv_bytes_per_token"`},
		{`"max_batch":8`, `"max_batch":1.5`, `"max_batch"`},
		{`"weight_seconds":0.008`, `"weight_seconds":0.08`, `"weight_seconds"`},
		{`"weight_bytes":1000`, `"weight_bytes":-1`, `"weight_bytes"`},
		{`"max_batch":8`, `"max_batch":8,"ranks":-1`, `"ranks"`},
		{`0.008}`, `0.008}{}`, `data after the JSON value`},
		{`{"name"`, "{\n\n\"name", `line 3`},
	} {
		in := strings.Replace(valid, x.old, x.new, 1)
		if _, err := Read(strings.NewReader(in)); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s → %s: error %v, want one with %s", x.old, x.new, err, x.want)
		}
	}
	if _, err := Read(strings.NewReader(strings.Repeat(" ", maxProfileBytes+1))); err == nil {
		t.Error("an endless profile was read")
	}
}

func FuzzRead(f *testing.F) {
	f.Add(valid)
	f.Add(`{}`)
	f.Fuzz(func(t *testing.T, in string) {
		p, err := Read(strings.NewReader(in))
		if err == nil && p.Validate() != nil {
			t.Errorf("Read returned an invalid profile: %v", p.Validate())
		}
	})
}

func TestBuiltins(t *testing.T) {
	names := Names()
	if len(names) < 4 {
		t.Fatalf("built-in profiles: %v", names)
	}
	for _, n := range names {
		p, err := Builtin(n)
		testkit.NoError(t, err)
		if p.Name != n || p.Source == "" || len(p.How) == 0 || p.FitError.Points == 0 {
			t.Errorf("%s does not say what it is: %+v", n, p)
		}
		if err := p.Capacity().Validate(); err != nil {
			t.Error(err)
		}
	}
	if _, err := Builtin("nope"); err == nil || !strings.Contains(err.Error(), names[0]) {
		t.Errorf("error %v does not list the names", err)
	}
}

func TestSeconds(t *testing.T) {
	p := Profile{D0: 1, D1: 10, D2: 100, D3: 1000, D4: 2, Kappa: 0.5}
	for _, x := range []struct {
		it   Iteration
		want float64
	}{
		{Iteration{}, 0},
		{Iteration{Decodes: 2, Held: 10, Longest: 5}, 1 + 20 + 20},       // equal lengths
		{Iteration{Decodes: 2, Held: 10, Longest: 9}, 1 + 20 + 2*(10+2)}, // Lmax − Lmean = 4
		{Iteration{Prefill: 3, Prefill2: 9}, 1 + 300 + 9000},
	} {
		if got := p.Seconds(x.it); got != x.want {
			t.Errorf("Seconds(%+v) = %v, want %v", x.it, got, x.want)
		}
	}
}

// Scale and TensorParallel keep profiles valid, and repeated Scales multiply.
func TestScaleAndTensorParallel(t *testing.T) {
	it := Iteration{Decodes: 40, Held: 40_000, Longest: 9000, Prefill: 512, Prefill2: 512 * 512}
	for _, n := range Names() {
		p, err := Builtin(n)
		testkit.NoError(t, err)
		fast := p.Scale(4)
		if !near(fast.Seconds(it), p.Seconds(it)/4, 1e-9) || fast.Validate() != nil {
			t.Errorf("%s: Scale(4): %v against %v", n, fast.Seconds(it), p.Seconds(it))
		}
		two := p.TensorParallel(2)
		if err := two.Validate(); err != nil {
			t.Error(err)
		}
		if got := two.Seconds(it); got >= p.Seconds(it) || got <= p.Seconds(it)/2 {
			t.Errorf("%s: two ranks take %v, one %v", n, got, p.Seconds(it))
		}
		if two.KVTokens <= 2*p.KVTokens || two.Ranks != 2 {
			t.Errorf("%s: two ranks hold %d tokens, one %d", n, two.KVTokens, p.KVTokens)
		}
		if p.TensorParallel(1).Name != n || p.TensorParallel(1).Ranks != 1 {
			t.Errorf("%s: one rank is not the profile itself", n)
		}
		if tr := p.Transfer(); !(tr.PerToken > 0) || !(tr.Base > 0) {
			t.Errorf("%s: transfer %+v", n, tr)
		}
	}
}
