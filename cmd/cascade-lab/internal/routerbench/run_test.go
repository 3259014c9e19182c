package routerbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/contestant"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

// small returns a matrix of 20 requests on two engines that run 20 times as fast as real ones.
func small(t *testing.T, tools contestant.Tools, names ...string) (m *matrix, log *bytes.Buffer) {
	log = &bytes.Buffer{}
	m = &matrix{
		rates: []float64{20}, seeds: 1, speed: 20, replicas: 2, dir: t.TempDir(), tools: tools, log: slog.New(slog.DiscardHandler),
		model:  config.Model{Name: "m", Context: 4096, Profile: "rtxpro6000-llama-3.1-8b"},
		again:  repeat{build: "test"},
		stderr: log, stdout: &bytes.Buffer{},
	}
	var err error
	m.contestants, err = contestant.Named(names)
	testkit.NoError(t, err)
	m.workload, err = openWorkload(workload{name: "chat", requests: 20, longest: m.model.Context})
	testkit.NoError(t, err)
	testkit.NoError(t, m.validate())
	return m, log
}

// answered checks that every request of every run was answered in full, and returns the runs.
func answered(t *testing.T, m *matrix) map[cell]run {
	t.Helper()
	runs, err := readRuns(m.runsDir(), orderCells(m.names(), m.rates, m.seeds))
	testkit.NoError(t, err)
	if len(runs) != len(m.contestants)*len(m.rates)*m.seeds {
		t.Errorf("%d runs are stored", len(runs))
	}
	for c, r := range runs {
		if r.Result.Completed != r.Result.Requests || r.Result.Requests != 20 || r.Result.Truncated > 0 || r.Elapsed <= 0 {
			t.Errorf("%v: %d of %d requests were answered, %d truncated: %v", c, r.Result.Completed, r.Result.Requests, r.Result.Truncated, r.Result.Failures)
		}
	}
	return runs
}

// TestCascadeAndEnvoy runs a small matrix on real engines, sockets and Envoy, and continues it.
func TestCascadeAndEnvoy(t *testing.T) {
	m, log := small(t, contestant.Tools{Envoy: envoytest.Binary(t)}, "cascade", "envoy-least-request")
	testkit.NoError(t, m.run(t.Context()))
	if !strings.Contains(log.String(), "2 of 2 runs are to be made") {
		t.Errorf("the first run: %s", log)
	}
	runs := answered(t, m)
	if r := runs[cell{"cascade", 20, 1}]; len(r.Result.Stages) == 0 {
		t.Error("no answer of Cascade names its stage: did it serve the requests?")
	}
	if r := runs[cell{"envoy-least-request", 20, 1}]; len(r.Result.Stages) != 0 {
		t.Error("answers through stock Envoy name a stage")
	}
	if _, err := os.Stat(filepath.Join(m.dir, "tables.md")); err != nil {
		t.Error(err)
	}

	log.Reset()
	m.contestants, _ = contestant.Named([]string{"cascade", "envoy-least-request", "cascade-one-stage"})
	testkit.NoError(t, m.run(t.Context()))
	if !strings.Contains(log.String(), "1 of 3 runs are to be made") || !strings.Contains(log.String(), "run 1 of 1") {
		t.Errorf("the second run: %s", log)
	}
	answered(t, m)
}

// TestWheels runs the routers that are wheels, each with each policy.
func TestWheels(t *testing.T) {
	testkit.SkipSlow(t)
	tools := contestant.Tools{VLLM: wheel(t, "routers/bin/python"), SGLang: wheel(t, "routers/bin/python")}
	m, _ := small(t, tools, "vllm-router-cache-aware", "vllm-router-power-of-two", "vllm-router-consistent-hash", "sglang-router-cache-aware")
	testkit.NoError(t, m.run(t.Context()))
	answered(t, m)
}

// TestKVAware runs the policy of vLLM's router that follows the engines' KV events: turns of ten conversations
// find most of what they share with those before. Anywhere, half of them would.
func TestKVAware(t *testing.T) {
	testkit.SkipSlow(t)
	m, log := small(t, contestant.Tools{VLLM: wheel(t, "routers/bin/python")}, "vllm-router-kv-aware")
	m.workload, m.rates, m.speed = conversations(40), []float64{5}, 5
	testkit.NoError(t, m.run(t.Context()))
	runs := testkit.Must(readRuns(m.runsDir(), orderCells(m.names(), m.rates, m.seeds)))
	r := runs[cell{"vllm-router-kv-aware", 5, 1}].Result
	if r.Completed != 40 || r.Reuse == nil || r.Reuse.OfIdeal < 0.75 || r.Reuse.LoadCV < 0 || !strings.Contains(log.String(), "of the ideal, load CV") {
		t.Errorf("%d answered, %+v\n%s", r.Completed, r.Reuse, log)
	}
}

// conversations returns a workload of n requests, turns of ten conversations in turn that grow by 512 tokens
// each. As many requests before them are history.
func conversations(n int) workload {
	w := workload{name: "conversations", requests: n, longest: 8192}
	for i := range 4 * n {
		turn := trace.Request{At: time.Duration(i) * time.Second, Input: policies.Tokens(700 + 512*((i%n)/10)), Output: 4}
		for b := range int(turn.Input / trace.BlockTokens) {
			turn.Prefix = append(turn.Prefix, uint64(i/n*1000+i%10*100+b))
		}
		w.file = append(w.file, turn)
	}
	return w
}

// TestLimit checks that no run begins that would end after the limit, and that the tables of the others are
// written.
func TestLimit(t *testing.T) {
	m, log := small(t, contestant.Tools{}, "cascade", "cascade-one-stage")
	m.limit = time.Second
	testkit.NoError(t, m.run(t.Context()))
	if !strings.Contains(log.String(), "2 runs are left and do not fit into -limit 1s") {
		t.Errorf("%s", log)
	}
	if _, err := os.Stat(filepath.Join(m.dir, "tables.md")); err != nil {
		t.Error(err)
	}
	m.limit = -1
	if err := m.validate(); err == nil {
		t.Error("a negative limit is no error")
	}
}

// wheel returns the path of a program that "make routers" installs.
func wheel(t *testing.T, name string) string {
	path := filepath.Join(testkit.Root(t), ".cache", name)
	if _, err := os.Stat(path); err != nil {
		testkit.Skip(t, testkit.Unavailable{What: name + " is not installed", Remedy: "run `make routers`", InCI: true})
	}
	return path
}

// TestRunFails checks that a router that does not start, and a context that ends, are errors, and that no run is stored.
func TestRunFails(t *testing.T) {
	m, _ := small(t, contestant.Tools{Envoy: "/bin/false"}, "envoy-least-request")
	err := m.run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "envoy-least-request, 20 requests/s, seed 1") || !strings.Contains(err.Error(), "/bin/false") {
		t.Errorf("a router that exits: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped by the test")
	cancel(stopped)
	m, _ = small(t, contestant.Tools{}, "cascade")
	if err := m.run(ctx); err == nil {
		t.Error("a run whose context has ended is no error")
	}
	files, err := os.ReadDir(m.runsDir())
	testkit.NoError(t, err)
	if len(files) > 0 {
		t.Errorf("stored %v", files)
	}
}

// TestFlags checks the errors of bad flags.
func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-rates 0":                   "positive numbers",
		"-rates ,":                   "at least one load",
		"-seeds 0":                   "-seeds 0",
		"-replicas 0":                "-replicas 0",
		"-speed -1":                  "-speed -1",
		"-requests 0":                "-requests 0",
		"-engines http://a -speed 2": "-speed 1",
		"-contestants none":          "must be one of cascade, ",
		"-trace missing":             "neither a shipped mix",
		"-contestants cascade -profile none -out " + t.TempDir(): "-profile",
		"more": "unexpected argument",
	} {
		if err := Run(t.Context(), strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", args, err, want)
		}
	}
}

// TestWindows checks that seeds get windows of a trace that do not overlap, after its history.
func TestWindows(t *testing.T) {
	var text strings.Builder
	text.WriteString("arrival_ms,input_tokens,output_tokens\n")
	const total = 100
	for i := range total {
		text.WriteString(strings.Join([]string{strconv.Itoa(i * 1000), strconv.Itoa(i + 1), "1"}, ",") + "\n")
	}
	dir := t.TempDir()
	testkit.NoError(t, writeFile(dir, "t.csv", text.String()))
	w, err := openWorkload(workload{name: filepath.Join(dir, "t.csv"), requests: 20, longest: 4096})
	testkit.NoError(t, err)
	seen := map[int]bool{}
	history, err := w.historyOf(4)
	testkit.NoError(t, err)
	all := history
	for seed := uint64(1); seed <= 3; seed++ {
		requests, err := w.requestsOf(seed, 4)
		testkit.NoError(t, err)
		if len(requests) != 20 || requests[0].At != 0 {
			t.Errorf("seed %d: %d requests from %v", seed, len(requests), requests[0].At)
		}
		if rate := trace.Rate(requests); rate < 3.99 || rate > 4.01 {
			t.Errorf("seed %d: %v requests/s, want 4", seed, rate)
		}
		all = append(all, requests...)
	}
	for _, r := range all {
		if seen[int(r.Input)] {
			t.Errorf("request %d is in two windows", r.Input)
		}
		seen[int(r.Input)] = true
	}
	if len(history) != 25 || len(seen) != 85 {
		t.Errorf("%d requests of history, %d in all", len(history), len(seen))
	}
	if _, err := w.requestsOf(0, 4); err == nil {
		t.Error("seed 0, before the first window, is no error")
	}
	if _, err := w.requestsOf(4, 4); err == nil || !strings.Contains(err.Error(), "3 windows of 20") {
		t.Errorf("a seed beyond the trace: %v", err)
	}
}

// TestSample checks that the runs of a sample have whole conversations of a trace, others for each seed, and
// that only traces are sampled.
func TestSample(t *testing.T) {
	var text strings.Builder
	for i := range 800 { // 100 conversations of 8 turns
		turn, c := i/100, i%100
		ids := "0"
		for b := range 1 + turn {
			ids += fmt.Sprintf(",%d", 1000+10*c+b)
		}
		fmt.Fprintf(&text, `{"timestamp": %d, "input_length": %d, "output_length": 1, "hash_ids": [%s]}`+"\n", 1000*i, 512*(2+turn), ids)
	}
	dir := t.TempDir()
	testkit.NoError(t, writeFile(dir, "t.jsonl", text.String()))
	w := workload{name: filepath.Join(dir, "t.jsonl"), requests: 30, longest: 8192, sample: 4}
	sampled, err := openWorkload(w)
	testkit.NoError(t, err)
	turns := map[uint64]int{}
	for _, r := range sampled.file {
		turns[r.Prefix[1]]++
	}
	for id, n := range turns {
		if n != 8 {
			t.Errorf("%d of 8 turns of conversation %d", n, id)
		}
	}
	if len(turns) < 10 || len(turns) > 40 || sampled.name != "t.jsonl, one conversation in 4" {
		t.Errorf("%s: %d of 100 conversations", sampled.name, len(turns))
	}
	first, err := sampled.requestsOf(1, 2)
	testkit.NoError(t, err)
	second, err := sampled.requestsOf(2, 2)
	testkit.NoError(t, err)
	if slices.EqualFunc(first, second, func(a, b trace.Request) bool { return slices.Equal(a.Prefix, b.Prefix) }) {
		t.Error("two seeds have the same requests")
	}
	w.sample = 1 << 40
	if _, err := openWorkload(w); err == nil || !strings.Contains(err.Error(), "-one-conversation-in 1099511627776") {
		t.Errorf("a sample without a request: %v", err)
	}
	w.sample = -1
	if _, err := openWorkload(w); err == nil {
		t.Error("a negative sample is no error")
	}
	w.name, w.sample = "chat", 1
	if _, err := openWorkload(w); err != nil {
		t.Errorf("all of a mix: %v", err)
	}
	w.sample = 4
	if _, err := openWorkload(w); err == nil || !strings.Contains(err.Error(), "only a trace file") {
		t.Errorf("a sample of a mix: %v", err)
	}
}

// TestBesideNiced checks that tables say of runs that other work was beside them, whoever prints them later.
func TestBesideNiced(t *testing.T) {
	m, _ := small(t, contestant.Tools{}, "cascade")
	c := cell{"cascade", 20, 1}
	beside := func(m *matrix, runs map[cell]run) bool {
		return slices.ContainsFunc(m.evidence(runs).Conditions, func(s string) bool { return strings.Contains(s, "lowest priority") })
	}
	if beside(m, map[cell]run{c: {cell: c}}) {
		t.Error("runs alone are said to have been beside other work")
	}
	m.besideNiced = true
	r := m.newRun(c, input{})
	if !m.replayConfig(c, input{}, "http://127.0.0.1:1").BesideNiced {
		t.Error("-beside-niced does not reach the replay")
	}
	m.besideNiced = false
	if !beside(m, map[cell]run{c: r}) {
		t.Error("a stored run does not say that other work was beside it")
	}
}

// TestMixes checks that a mix's requests depend on the seed alone, whatever the rate.
func TestMixes(t *testing.T) {
	w, err := openWorkload(workload{name: "mixed", requests: 50, longest: 131072})
	testkit.NoError(t, err)
	a, err := w.requestsOf(1, 5)
	testkit.NoError(t, err)
	b, err := w.requestsOf(1, 10)
	testkit.NoError(t, err)
	other, err := w.requestsOf(2, 5)
	testkit.NoError(t, err)
	w.longest = 1000 // fewer than half of the requests
	short, err := w.requestsOf(1, 5)
	testkit.NoError(t, err)
	if len(short) != 50 || len(a) != 50 {
		t.Errorf("%d requests, and %d within 1000 tokens; want 50", len(a), len(short))
	}
	for _, r := range short {
		if r.Input+r.Output > 1000 {
			t.Errorf("%+v is too long", r)
		}
	}
	w.longest = 1
	if _, err := w.requestsOf(1, 5); err == nil {
		t.Error("a mix without a request that is short enough is no error")
	}
	same := 0
	for i := range a {
		if a[i].Input != b[i].Input || a[i].Output != b[i].Output {
			t.Fatalf("request %d differs with the rate", i)
		}
		if a[i].Input == other[i].Input {
			same++
		}
	}
	if same > len(a)/2 {
		t.Errorf("%d of %d requests are those of another seed", same, len(a))
	}
}

// TestKeys checks which inputs make a run another one: ports of engines do not, because they change with each start.
func TestKeys(t *testing.T) {
	key := func(edit func(*matrix)) string {
		m, _ := small(t, contestant.Tools{}, "cascade")
		m.speed, m.external = 1, []contestant.Replica{{URL: "http://127.0.0.1:1"}, {URL: "http://127.0.0.1:2"}}
		edit(m)
		c := cell{m.contestants[0].Name, 20, 1}
		return testkit.Must(m.inputs([]cell{c}))[c].key
	}
	base := key(func(*matrix) {})
	if key(func(m *matrix) { m.external[0].URL = "http://127.0.0.1:3" }) != base {
		t.Error("another port makes another run")
	}
	for name, edit := range map[string]func(*matrix){
		"fewer engines":    func(m *matrix) { m.external = m.external[:1] },
		"emulated engines": func(m *matrix) { m.external = nil },
		"caches kept":      func(m *matrix) { m.keepCaches = true },
		"speed":            func(m *matrix) { m.speed = 2 },
		"context":          func(m *matrix) { m.model.Context = 8192 },
		"profile":          func(m *matrix) { m.model.Profile = "h200-llama-3.1-8b" },
		"requests":         func(m *matrix) { m.workload.requests = 19 },
		"contestant":       func(m *matrix) { m.contestants, _ = contestant.Named([]string{"cascade-paper"}) },
		"Envoy":            func(m *matrix) { m.tools.Envoy = "envoy" },
	} {
		if key(edit) == base {
			t.Errorf("%s: the run is the same", name)
		}
	}
}
