package routerbench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/interval"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

func writeFile(dir, name, text string) error {
	return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)
}

// results returns the runs of contestants at 10 requests/s whose every figure is value(contestant, seed) seconds.
func results(names []string, seeds int, value func(name string, seed uint64) float64) map[cell]run {
	out := map[cell]run{}
	for _, c := range orderCells(names, []float64{10}, seeds) {
		v := value(c.Contestant, c.Seed)
		s := replay.Summary{Count: 1, Mean: v, P50: v, P95: v, P99: v}
		l := replay.Latency{TTFT: s, TPOT: s, Normalised: s, E2E: s}
		out[c] = run{cell: c, Build: "b", Result: replay.Result{Sent: 100, IdleCPU: 0.5, Engine: replay.Metrics{Latency: l, Deciles: []replay.Group{{}, {Latency: l}}}}}
	}
	return out
}

// edit changes one stored result.
func edit(runs map[cell]run, c cell, change func(*replay.Result)) {
	r := runs[c]
	change(&r.Result)
	runs[c] = r
}

// TestCompare checks when there is a verdict.
func TestCompare(t *testing.T) {
	// What a seed's requests cost differs by far more than the systems do.
	cost := func(factor map[string]float64) func(string, uint64) float64 {
		return func(name string, seed uint64) float64 {
			return float64(seed*seed) * factor[name] * (1 + 0.02*float64(seed%3))
		}
	}
	noisy := func(name string, seed uint64) float64 {
		if name == "b" {
			return 1
		}
		return []float64{0.7, 1.6, 0.8, 1.5, 0.9}[seed-1]
	}
	fail := func(n int) func(*replay.Result) {
		return func(r *replay.Result) { r.Failures = []replay.Failure{{Count: n}} }
	}
	void := func(r *replay.Result) { r.Void = "busy" }
	for _, c := range []struct {
		name     string
		value    func(string, uint64) float64
		seeds    int
		change   func(map[cell]run)
		verdict  string
		withheld string
		used     int
	}{
		{"better in every seed", cost(map[string]float64{"a": 0.9, "b": 1}), 5, nil, better, "", 5},
		{"worse in every seed", cost(map[string]float64{"a": 1.1, "b": 1}), 5, nil, worse, "", 5},
		{"equal", cost(map[string]float64{"a": 1, "b": 1}), 5, nil, "", "", 5},
		{"the interval contains 1", noisy, 5, nil, "", "", 5},
		{"too few seeds", cost(map[string]float64{"a": 0.5, "b": 1}), 4, nil, "", "4 seeds, 5 are needed", 4},
		{"a void run of either counts for both", cost(map[string]float64{"a": 0.5, "b": 1}), 6, func(r map[cell]run) {
			edit(r, cell{"a", 10, 2}, void)
			edit(r, cell{"b", 10, 3}, void)
		}, "", "4 seeds, 5 are needed", 4},
		{"few failures", cost(map[string]float64{"a": 0.5, "b": 1}), 5, func(r map[cell]run) { edit(r, cell{"b", 10, 2}, fail(5)) }, better, "", 5},
		{"many failures", cost(map[string]float64{"a": 0.5, "b": 1}), 5, func(r map[cell]run) { edit(r, cell{"a", 10, 2}, fail(6)) }, "", "a failed 6 of 500 requests", 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			runs := results([]string{"a", "b"}, c.seeds, c.value)
			if c.change != nil {
				c.change(runs)
			}
			got := compare("a", []string{"b"}, []float64{10}, runs)
			if len(got) != len(figures) {
				t.Fatalf("%d comparisons, want one per figure", len(got))
			}
			for _, g := range got {
				if g.Verdict != c.verdict || g.Withheld != c.withheld || g.Seeds != c.used || g.Rival != "b" {
					t.Errorf("%+v, want verdict %q, withheld %q, %d seeds", g, c.verdict, c.withheld, c.used)
				}
			}
		})
	}
}

// TestSummarise checks that void runs count in no figure, and the sums.
func TestSummarise(t *testing.T) {
	runs := results([]string{"a", "b"}, 3, func(_ string, seed uint64) float64 { return float64(seed) })
	edit(runs, cell{"a", 10, 3}, func(r *replay.Result) { r.Void, r.IdleCPU = "busy", 0.1 })
	edit(runs, cell{"a", 10, 1}, func(r *replay.Result) { r.Failures, r.Truncated = []replay.Failure{{Count: 2}}, 4 })
	edit(runs, cell{"b", 10, 3}, func(r *replay.Result) { r.IdleCPU = -1 }) // unknown
	got := summarise([]string{"a", "b"}, []float64{10}, runs)
	a, b := got[0], got[1]
	if a.Contestant != "a" || a.Runs != 2 || a.Void != 1 || a.Requests != 200 || a.Failed != 2 || a.Truncated != 4 || a.Idle != 0.1 || a.Figures["TTFT p50"].Mean != 1.5 {
		t.Errorf("%+v", a)
	}
	if b.Runs != 3 || b.Void != 0 || b.Idle != 0.5 || b.Figures["longest decile p99"].Mean != 2 || b.Figures["TPOT mean"].Runs != 3 {
		t.Errorf("%+v", b)
	}
}

// TestFiguresDiffer checks that no two figures read the same field.
func TestFiguresDiffer(t *testing.T) {
	s := func(x float64) replay.Summary { return replay.Summary{Mean: x, P50: x + 1, P95: x + 2, P99: x + 3} }
	m := replay.Metrics{Latency: replay.Latency{TTFT: s(10), TPOT: s(20), Normalised: s(30), E2E: s(40)},
		Deciles: []replay.Group{{Latency: replay.Latency{Normalised: s(50)}}, {Latency: replay.Latency{Normalised: s(60)}}}}
	var got []float64
	for _, f := range figures {
		got = append(got, f.of(m))
	}
	if fmt.Sprint(got) != "[10 11 12 13 20 30 33 41 43 63]" {
		t.Errorf("%v", got)
	}
	if figures[len(figures)-1].of(replay.Metrics{}) != 0 {
		t.Error("a run without requests has a longest decile")
	}
}

// TestShares checks the table of prefix caches: what no run knows has no column, and void runs do not count.
func TestShares(t *testing.T) {
	runs := results([]string{"a", "b"}, 2, func(string, uint64) float64 { return 1 })
	e := evidence{Trace: "t", Subject: "a", contestants: []string{"a", "b"}, rates: []float64{10}}
	table := func() string {
		e.Summaries = summarise(e.contestants, e.rates, runs)
		var text bytes.Buffer
		testkit.NoError(t, e.sharesTable().Text(&text))
		return text.String()
	}
	if text := table(); strings.Contains(text, "hit rate │") || strings.Contains(text, "SLO │") {
		t.Errorf("columns without figures:\n%s", text)
	}
	for seed := range uint64(2) {
		edit(runs, cell{"a", 10, seed + 1}, func(r *replay.Result) {
			r.Reuse = &replay.Reuse{Source: replay.FromUsage, HitRate: 0.25 + 0.5*float64(seed), LoadCV: 0.125}
			r.Attainment = &replay.Attainment{Shares: [...]float64{0.5, 0.75, 1}}
		})
	}
	edit(runs, cell{"b", 10, 1}, func(r *replay.Result) { r.Reuse = &replay.Reuse{LoadCV: 0.5} })
	edit(runs, cell{"b", 10, 2}, func(r *replay.Result) { r.Void, r.Reuse = "busy", &replay.Reuse{LoadCV: 9} })
	text := table()
	for _, want := range []string{"prefix hit rate │", "within 20 × SLO", "50.0 ± ", "0.12 ± 0.00 │", "75.0 ± 0.00 %", " – │        0.50 │"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "of the ideal │") {
		t.Errorf("a column of an ideal that is not known:\n%s", text)
	}
}

// TestTables checks what the tables show of each system, and the files.
func TestTables(t *testing.T) {
	runs := results([]string{"a", "b", "c"}, 5, func(name string, seed uint64) float64 {
		return map[string]float64{"a": 0.1, "b": 0.2, "c": 0.1}[name] * (1 + 0.1*float64(seed))
	})
	edit(runs, cell{"c", 10, 5}, func(r *replay.Result) { r.Void = "busy" })
	e := evidence{Trace: "mixed", Subject: "a", contestants: []string{"a", "b", "c"}, rates: []float64{10},
		Summaries: summarise([]string{"a", "b", "c"}, []float64{10}, runs), Comparisons: compare("a", []string{"b", "c"}, []float64{10}, runs)}
	var text bytes.Buffer
	testkit.NoError(t, e.print(&text))
	i := interval.Mean([]float64{110, 120, 130, 140, 150})
	for _, want := range []string{
		fmt.Sprintf("130 ± %.1f", (i.High-i.Low)/2), "4 (+1 void)", "0 of 400", "50 %",
		"× 0.50 (0.50–0.50) │", "better │", "× 1.00 (1.00–1.00) │", "No verdict on c at 10.0 requests/s: 4 seeds, 5 are needed.",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	dir := t.TempDir()
	testkit.NoError(t, e.write(dir))
	for name, want := range map[string]string{"tables.md": "| 10.0 | b |", "results.json": `"verdict": "better"`, "routers.svg": "TTFT p95"} {
		body, err := os.ReadFile(filepath.Join(dir, name))
		testkit.NoError(t, err)
		if !bytes.Contains(body, []byte(want)) {
			t.Errorf("%s has no %q", name, want)
		}
	}
}
