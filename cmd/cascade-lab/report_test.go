package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/evaluation"
	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// storeRuns fills the run store of a report with invented outcomes.
func storeRuns(t *testing.T, f *reportFlags) (*runStore, []evaluation.Run) {
	t.Helper()
	in := testkit.Must(f.inputs())
	e := testkit.Must(evaluation.New(in))
	s := testkit.Must(newRunStore(filepath.Join(f.out, "runs"), in, f.skew))
	runs := e.Runs()
	for i, r := range runs {
		o := evaluation.Outcome{Rate: float64(i), Requests: 10, TokensPerSecond: 100}
		o.TTFT.Mean, o.Normal.Mean = 0.1, 0.01*float64(1+i%7)
		testkit.NoError(t, s.write(r, o))
	}
	return s, runs
}

// runCommand runs a command line, which must succeed, and returns what it prints.
func runCommand(t *testing.T, args ...string) string {
	t.Helper()
	out := new(testkit.Log)
	if code := run(t.Context(), args, out, out); code != 0 {
		t.Fatalf("cascade-lab %s ends with code %d: %s", strings.Join(args, " "), code, out)
	}
	return out.String()
}

// TestReportGoesOn makes a report of stored simulations: none runs again, all files are written, and written again
// they have the same bytes. A file of the store that holds something else is an error that names it.
func TestReportGoesOn(t *testing.T) {
	dir := t.TempDir()
	trace := filepath.Join(dir, "real.csv")
	testkit.NoError(t, os.WriteFile(trace, []byte("arrival_ms,input_tokens,output_tokens\n0,100,20\n500,90,0\n1000,300,30\n"), 0o644))
	f := &reportFlags{out: filepath.Join(dir, "out"), quick: true, traces: []string{trace}, skipInvalid: true, profiles: []string{"h100-llama-3.1-8b"}, seed: 3}
	s, runs := storeRuns(t, f)
	args := []string{"report", "--quick", "--out", f.out, "--trace", trace, "--skip-invalid", "--profile", "h100-llama-3.1-8b", "--seed", "3"}
	other := testkit.Must(s.path(evaluation.Run{Policy: "of other settings"}))
	notes := filepath.Join(s.dir, "notes.json")
	for _, path := range []string{other, notes} {
		testkit.NoError(t, os.WriteFile(path, []byte("{}"), 0o644))
	}
	text := runCommand(t, args...)
	if _, err := os.Stat(other); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a run of other settings: %v", err)
	}
	if left := testkit.Must(os.ReadDir(s.dir)); len(left) != len(runs)+1 || testkit.Must(os.Stat(notes)).Size() != 2 {
		t.Errorf("%d files are left for %d runs and one of the user's", len(left), len(runs))
	}
	for _, want := range []string{" of them stored; about 1 s", filepath.Join(f.out, "report.html"), "--trace real.csv --skip-invalid --profile h100-llama-3.1-8b --seed 3"} {
		if !strings.Contains(text, want) {
			t.Errorf("the output lacks %q:\n%s", want, text)
		}
	}
	read := func(name string) string {
		return string(testkit.Must(atomicfile.Read(filepath.Join(f.out, name), 1<<24)))
	}
	page, markdown, results := read("report.html"), read("report.md"), read("results.json")
	for _, want := range []string{"Against routers: real on h100-llama-3.1-8b", "real.csv, 2 requests; 1 invalid lines were dropped"} {
		if !strings.Contains(page, want) || !strings.Contains(markdown, want) {
			t.Errorf("a page lacks %q", want)
		}
	}
	var listed []storedRun
	if err := json.Unmarshal([]byte(results), &listed); err != nil || len(listed) != len(runs) || listed[1].Run != runs[1] || listed[1].Outcome.Rate != 1 {
		t.Errorf("results.json: %v, %d runs of %d", err, len(listed), len(runs))
	}
	if timings := read("timings.md"); !strings.Contains(timings, "exact (ours)") {
		t.Errorf("timings.md:\n%s", timings)
	}
	runCommand(t, append(args, "--json")...)
	if read("report.html") != page || read("report.md") != markdown || read("results.json") != results {
		t.Error("the same runs give other bytes")
	}
	path := testkit.Must(s.path(runs[2]))
	for content, want := range map[string]string{"{": "unexpected end of JSON", `{"policy": "other"}`: "holds another run"} {
		testkit.NoError(t, os.WriteFile(path, []byte(content), 0o644))
		out := new(testkit.Log)
		if code := run(t.Context(), args, out, out); code != 1 || !strings.Contains(out.String(), want) || !strings.Contains(out.String(), path) {
			t.Errorf("%s: code %d, %s", content, code, out)
		}
	}
}

// TestStoredRunsDependOnInputs checks that a run is stored under another name for another workload, engine, table or run.
func TestStoredRunsDependOnInputs(t *testing.T) {
	dir := t.TempDir()
	table := filepath.Join(dir, "skew.csv")
	testkit.NoError(t, os.WriteFile(table, []byte("regime,n,kv_big,kv_mean,t_mean_us,t_skew_us,t_max_us\npure,2,512,320,46,47,50\n"), 0o644))
	names := map[string]bool{}
	for _, f := range []reportFlags{
		{profiles: []string{"h100-llama-3.1-8b"}, seed: 1}, {profiles: []string{"h200-llama-3.1-8b"}, seed: 1},
		{profiles: []string{"h100-llama-3.1-8b"}, seed: 1, skew: table},
	} {
		in := testkit.Must(f.inputs())
		s := testkit.Must(newRunStore(dir, in, f.skew))
		for _, r := range []evaluation.Run{{Policy: "a"}, {Policy: "a", Seed: 1}} {
			names[testkit.Must(s.path(r))] = true
		}
	}
	if len(names) != 6 {
		t.Errorf("%d names for 6 runs", len(names))
	}
}

// TestQuickReport makes the quick report; it is to take less than a minute on two processors that do nothing else.
func TestQuickReport(t *testing.T) {
	testkit.SkipSlow(t)
	testkit.SkipUnderRace(t)
	dir := t.TempDir()
	text := runCommand(t, "report", "--quick", "--out", dir)
	if !strings.Contains(text, "This is a quick look") {
		t.Error(text)
	}
	if page := testkit.Must(os.ReadFile(filepath.Join(dir, "report.html"))); len(page) < 100_000 {
		t.Errorf("the page has %d bytes", len(page))
	}
}
