package frontier

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/sim"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// TestSummarise checks quantiles against a sample that is known: the longest decile is the last ten
// prompts, which are also the slowest.
func TestSummarise(t *testing.T) {
	var all []sample
	for i := range 100 {
		n := (i * 37) % 100 // any order
		all = append(all, sample{prompt: policies.Tokens(n), ttft: float64(n) / 10, normalised: float64(n)})
	}
	want := figures{Mean: 49.5, Longest: 99, Median: 44, P95: 85, MedianTTFT: 4.4, P95TTFT: 8.5}
	if got := summarise(all); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := summarise(nil); got != (figures{}) {
		t.Errorf("of nothing: %+v", got)
	}
}

// TestJudge checks each part of the rule at its bound and beyond.
func TestJudge(t *testing.T) {
	rivals := []figures{{Longest: 10, Median: 3, P95: 5, Mean: 4}, {Longest: 5, Median: 2, P95: 8, Mean: 2}}
	for _, c := range []struct {
		name string
		f    figures
		kept bool
	}{
		{"equal to the best", figures{Longest: 10, Median: 2, P95: 5}, true},
		{"at every bound", figures{Longest: 11, Median: 2.04, P95: 5.1}, true},
		{"longest decile too slow", figures{Longest: 11.1, Median: 2, P95: 5}, false},
		{"median too slow", figures{Longest: 10, Median: 2.05, P95: 5}, false},
		{"p95 too slow", figures{Longest: 10, Median: 2, P95: 5.2}, false},
	} {
		if v := judge(c.f, rivals); v.kept() != c.kept {
			t.Errorf("%s: kept %v, %+v", c.name, v.kept(), v)
		}
	}
}

// TestSweep simulates one small cell twice: the tables list it, and are equal.
func TestSweep(t *testing.T) {
	table := func() string {
		s := sweep{
			profile: testkit.Must(cost.Builtin("rtxpro6000-llama-3.1-8b")), workloads: testkit.Must(openWorkloads("documents", "")),
			replicas: []int{2}, loads: []float64{0.5}, seeds: []uint64{1}, candidates: []candidate{{Name: "one", Policy: sim.OneStage}}, requests: 60, workers: 2, progress: io.Discard,
		}
		cells := testkit.Must(s.run(context.Background()))
		var out bytes.Buffer
		for _, table := range []interface{ Text(io.Writer) error }{figuresTable(cells), verdictsTable(cells)} {
			if err := table.Text(&out); err != nil {
				t.Fatal(err)
			}
		}
		return out.String()
	}
	first := table()
	for _, want := range []string{"documents", "least-load", "prefix-tree", "one", " of 1"} {
		if !strings.Contains(first, want) {
			t.Errorf("no %q in\n%s", want, first)
		}
	}
	if table() != first {
		t.Error("equal sweeps differ")
	}
}

// TestFailedRequests checks that no verdict is given where a system has failed requests: here the
// longest prompts, which no KV cache holds.
func TestFailedRequests(t *testing.T) {
	s := sweep{
		profile: testkit.Must(cost.Builtin("rtxpro6000-llama-3.1-8b")), workloads: testkit.Must(openWorkloads("documents", "")),
		replicas: []int{2}, loads: []float64{0.5}, seeds: []uint64{1}, candidates: []candidate{{Policy: sim.OneStage}}, requests: 60, workers: 1, progress: io.Discard,
	}
	s.profile.KVTokens = 8000
	if _, err := s.run(t.Context()); err == nil || !strings.Contains(err.Error(), "documents, 2 replicas, load 0.5: least-load: ") || !strings.Contains(err.Error(), " of 60 requests failed") {
		t.Errorf("error %v", err)
	}
}

// TestBadArguments checks that wrong arguments are named before anything is simulated.
func TestBadArguments(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"extra", `argument "extra"`},
		{"-seeds=", "-seeds: give at least one value"},
		{"-loads=", "-loads: give at least one value"},
		{"-replicas=,", "-replicas: give at least one value"},
		{"-candidates=", "-candidates: give at least one"},
		{"-candidates=nonsense", `-candidates: policy "nonsense": must be one of`},
		{"-candidates=paper -iteration-ratio=1.5", `-iteration-ratio: policy "paper"`},
		{"-iteration-ratio=x", "-iteration-ratio: strconv"},
		{"-slack=x", "-slack: strconv"},
		{"-slack=0.1 -candidates=one-stage", `-slack: policy "one-stage"`},
		{"-plot=cells.pdf", "-plot cells.pdf: a picture's file ends in .svg"},
	} {
		if err := Run(t.Context(), strings.Fields(c.args)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.args, err, c.want)
		}
	}
}

// TestWorkloads checks that every workload draws requests, and that a wrong name is refused.
func TestWorkloads(t *testing.T) {
	for _, g := range testkit.Must(openWorkloads("", "")) {
		g.Requests = 10
		if got, err := g.Generate(); err != nil || len(got) != 10 {
			t.Errorf("%s: %d requests, %v", g.Name, len(got), err)
		}
	}
	if _, err := openWorkloads("nonsense", ""); err == nil || !strings.Contains(err.Error(), strings.Join(trace.Names(), ", ")) {
		t.Errorf("error %v", err)
	}
}

// TestVariants checks that every setting is a candidate of its own name.
func TestVariants(t *testing.T) {
	for _, c := range []struct {
		ratios, slacks []float64
		want           []candidate
	}{
		{nil, nil, []candidate{{Name: "cascade", Policy: "cascade"}}},
		{[]float64{1.5, -1}, nil, []candidate{{Name: "cascade, ratio 1.5", Policy: "cascade", IterationRatio: 1.5}, {Name: "cascade, ratio -1", Policy: "cascade", IterationRatio: -1}}},
		{[]float64{2}, []float64{0.01, 0.05}, []candidate{
			{Name: "cascade, ratio 2, slack 0.01", Policy: "cascade", IterationRatio: 2, Slack: 0.01},
			{Name: "cascade, ratio 2, slack 0.05", Policy: "cascade", IterationRatio: 2, Slack: 0.05},
		}},
	} {
		if got := variants("cascade", c.ratios, c.slacks); !slices.Equal(got, c.want) {
			t.Errorf("%+v, want %+v", got, c.want)
		}
	}
}

// TestBrokenCells checks that a cell is listed where the rule is not kept, with the figure that breaks it,
// and that the plot shows every cell.
func TestBrokenCells(t *testing.T) {
	rivals := []figures{{Longest: 10, Median: 2, P95: 5}}
	cells := []cell{
		{workload: "kept", replicas: 4, load: 0.3, rivals: rivals, systems: []figures{{Name: "one", Longest: 10, Median: 2, P95: 5}}},
		{workload: "broken", replicas: 8, load: 0.5, rivals: rivals, systems: []figures{{Name: "one", Stages: 3, Longest: 15, Median: 2, P95: 4}}},
	}
	var out bytes.Buffer
	if err := brokenTable(cells).Text(&out); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Contains(got, "│ kept") || strings.Count(got, "broken") != 1 || !strings.Contains(got, "× 1.500 *") || strings.Contains(got, "× 0.800 *") {
		t.Errorf("table\n%s", got)
	}
	file := filepath.Join(t.TempDir(), "cells.svg")
	write, err := openPlot(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := write(testkit.Must(plotCells(cells))); err != nil {
		t.Fatal(err)
	}
	if drawn := string(testkit.Must(os.ReadFile(file))); !strings.Contains(drawn, ">kept<") || !strings.Contains(drawn, ">broken<") {
		t.Errorf("the plot lacks a workload:\n%s", drawn)
	}
}

// TestStoredCells checks that a sweep simulates no cell again that the same program has stored for the same
// inputs, and does so for others.
func TestStoredCells(t *testing.T) {
	s := sweep{
		profile: testkit.Must(cost.Builtin("rtxpro6000-llama-3.1-8b")), workloads: testkit.Must(openWorkloads("documents", "")),
		replicas: []int{2}, loads: []float64{0.5}, seeds: []uint64{1}, candidates: []candidate{{Name: "one", Policy: sim.OneStage}}, requests: 40, workers: 1, store: testkit.Must(newStore(t.TempDir())), progress: io.Discard,
	}
	first := testkit.Must(s.run(t.Context()))
	files := testkit.Must(filepath.Glob(filepath.Join(s.store.dir, "*.json")))
	if len(files) != 1 {
		t.Fatalf("stored %q, want one cell", files)
	}
	text := testkit.Must(os.ReadFile(files[0]))
	marked := bytes.Replace(text, []byte(`"Stages":0`), []byte(`"Stages":7`), 1)
	if err := os.WriteFile(files[0], marked, 0o600); err != nil {
		t.Fatal(err)
	}
	again := testkit.Must(s.run(t.Context()))
	if again[0].rivals[0].Stages != 7 || again[0].systems[0] != first[0].systems[0] {
		t.Errorf("simulated again: %+v, want the stored %s", again[0], marked)
	}
	s.requests++
	if other := testkit.Must(s.run(t.Context())); other[0].rivals[0].Stages == 7 {
		t.Error("the cell of other inputs was taken")
	}
	s.requests--
	if err := os.WriteFile(files[0], []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.run(t.Context()); err == nil || !strings.Contains(err.Error(), files[0]) {
		t.Errorf("error %v, want one that names %s", err, files[0])
	}
}
