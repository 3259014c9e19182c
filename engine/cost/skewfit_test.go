package cost

import (
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

var (
	tables = flag.String("tables", "", "folder with the public measurement tables, to refit the built-in skew")
	update = flag.Bool("update", false, "with -tables: write the refitted skew")
)

// TestBuiltinSkew checks the table of the built-in fit: its own points, what lies between and outside, and that
// it changes a batch's price as its alpha says.
func TestBuiltinSkew(t *testing.T) {
	f := BuiltinSkew()
	table := f.Table()
	for i, n := range f.Sequences {
		for j, mean := range f.Means {
			for _, longest := range []int{f.Shortest, 4096, f.Longest} {
				if a, inside := table.alpha(n, float64(longest), mean); !inside || math.Abs(a-f.Alpha[i][j]) > 1e-12 || a < 0 || a > 1 {
					t.Errorf("alpha(%d, %d, %v) = %v, %v; want %v", n, longest, mean, a, inside, f.Alpha[i][j])
				}
			}
		}
	}
	for _, c := range []struct {
		n, longest int
		mean       float64
	}{{2, 4096, 0.6}, {512, 4096, 0.6}, {16, 100, 0.6}, {16, f.Longest + 1, 0.6}, {16, 4096, 0.1}} {
		if _, inside := table.alpha(c.n, float64(c.longest), c.mean); inside {
			t.Errorf("%+v is inside of the table", c)
		}
	}
	p := testkit.Must(Builtin(BuiltinSkewName))
	p.Kappa = 0
	a := testkit.Must(NewAttention(p, MeasuredSkew, 0, table))
	it := Iteration{Decodes: 64, Held: 64 * 3604, Longest: 8192} // the mean is 0.44 of the longest
	alpha, _ := table.alpha(64, 8192, float64(it.Held)/(64*8192))
	want := p.Seconds(it) + p.D4*alpha*(64*8192-float64(it.Held))
	if got := a.Seconds(it); math.Abs(got-want) > 1e-12 || got <= p.Seconds(it) || a.Batches() != (Batches{Priced: 1}) {
		t.Errorf("the batch takes %v, want %v; %+v", got, want, a.Batches())
	}
}

// TestBuiltinSkewIsTheFit fits the public table again, which is not in the repository: alpha is the mean over the
// longest lengths.
func TestBuiltinSkewIsTheFit(t *testing.T) {
	if *tables == "" {
		testkit.Skip(t, testkit.Unavailable{What: "the public tables are not in the repository", Remedy: "give their folder: -tables FOLDER"})
	}
	got := SkewFit{
		Name: BuiltinSkewName, Source: "casys-kaist/LLMServingSim RTXPRO6000 Llama-3.1-8B bf16, vLLM 0.19, decode batches of unequal lengths (regime pure)",
		Command:   "go test ./engine/cost -run TestBuiltinSkewIsTheFit -tables FOLDER -update",
		Sequences: []int{4, 8, 16, 32, 64, 128, 256}, Means: []float64{0.27, 0.34, 0.44, 0.62, 0.81, 0.92},
		Shortest: 512, Longest: 16384,
	}
	path := filepath.Join(*tables, "rtxpro6000_llama8b_decode_skew.csv.gz")
	f := testkit.Must(os.Open(path))
	defer f.Close()
	measured := testkit.Must(ReadSkew(f))
	for _, n := range got.Sequences {
		var row []float64
		for _, mean := range got.Means {
			sum, count := 0.0, 0.0
			for longest := got.Shortest; longest <= got.Longest; longest *= 2 {
				a, _ := measured.alpha(n, float64(longest), mean)
				sum, count = sum+a, count+1
			}
			row = append(row, math.Round(1e4*sum/count)/1e4)
		}
		got.Alpha = append(got.Alpha, row)
	}
	again := testkit.Must(os.Open(path))
	defer again.Close()
	fitted, errs := got.Table(), []float64{}
	testkit.NoError(t, ReadTable("skew", again, func(r *Table) {
		if r.Text("regime") != "pure" {
			return
		}
		mean, most := r.Number("t_mean_us"), r.Number("t_max_us")
		alpha, _ := fitted.alpha(int(r.Number("n")), r.Number("kv_big"), r.Number("kv_mean")/r.Number("kv_big"))
		errs = append(errs, math.Abs((mean+alpha*(most-mean))/r.Number("t_skew_us")-1))
	}))
	slices.Sort(errs)
	got.FitError = FitError{P50: errs[len(errs)/2], P90: errs[len(errs)*9/10], Points: len(errs)}
	if *update {
		testkit.NoError(t, os.WriteFile(filepath.Join("skews", got.Name+".json"), append(testkit.Must(json.MarshalIndent(got, "", " ")), '\n'), 0o644))
		return
	}
	if d := cmp.Diff(BuiltinSkew(), got, cmpopts.EquateApprox(1e-4, 0)); d != "" {
		t.Errorf("the built-in skew is not the fit (-shipped +fitted):\n%s", d)
	}
}
