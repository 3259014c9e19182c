package evaluation

import (
	"bytes"
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/costfit"
	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/interval"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/sim"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// inputs are those of a tiny report on one workload.
func inputs(t *testing.T) Inputs {
	t.Helper()
	chat, _ := trace.Named("chat")
	return Inputs{
		Workloads: []Workload{{Name: "chat", Source: chat.Source, Generator: chat}},
		Engines:   []cost.Profile{testkit.Must(cost.Builtin("rtxpro6000-llama-3.1-8b"))},
		Skew:      cost.BuiltinSkew().Table(), SkewSource: "the built-in fit", Seed: 1, Command: "a test",
		Size: Size{
			Name: "tiny", PaperReplicas: 4, PaperSeeds: 1, PaperSeconds: 5, PaperLoads: []float64{0.3, 1},
			RouterReplicas: 2, RouterSeeds: 2, RouterSeconds: 3, RouterRequests: 20, RouterLoads: []float64{1},
		},
	}
}

// TestTinyReport simulates a tiny report twice, the second time backwards, and compares it with a golden file: equal
// inputs give the same bytes, in whatever order they are simulated.
func TestTinyReport(t *testing.T) {
	testkit.SkipUnderRace(t) // nothing here runs at the same time as anything else
	e := testkit.Must(New(inputs(t)))
	runs := e.Runs()
	make := func() (page, markdown string) {
		outcomes := map[Run]Outcome{}
		for _, r := range runs {
			outcomes[r] = testkit.Must(e.Execute(context.Background(), r))
		}
		p := testkit.Must(e.Page(outcomes))
		var a, b bytes.Buffer
		testkit.NoError(t, p.HTML(&a))
		testkit.NoError(t, p.Markdown(&b))
		return a.String(), b.String()
	}
	page, markdown := make()
	testkit.CompareGolden(t, "testdata/tiny.golden", []byte(markdown))
	slices.Reverse(runs)
	if again, _ := make(); again != page {
		t.Error("the same runs in another order give another page")
	}
	for _, bad := range []string{"NaN", "Inf", "%!", "e+300"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
}

// paperFigures are the figures of the paper's evaluation, by their labels in its source, those that motivate it,
// and the claims that have no figure.
var paperFigures = []string{
	"fig:mixed-len", "attention share", "fig:interference", // Background
	"fig:ttft", "fig:ttft (tail)", "fig:tpot", "fig:tpot (tail)", "light load", "models", "fig:single-instance", "fig:single-instance (Llumnix)",
	"fig:l40-latency", "fig:tp-latency (2)", "fig:tp-latency (4)", // Latency
	"fig:throughput", "fig:l40-throughput", "fig:tp-throughput (2)", "fig:tp-throughput (4)", // Throughput
	"fig:slo-1", "fig:slo-2", "fig:slo-3", // SLO
	"fig:prediction", "fig:topo-latency", "fig:topo-throughput", "fig:topo (no pipeline)", "fig:partition-latency", "fig:partition-throughput", "fig:partition (quantity)",
	"partition time", "fig:load-balancing", // Ablation
}

// TestEveryFigureHasARow checks that no figure is left out, and that every row is complete.
func TestEveryFigureHasARow(t *testing.T) {
	e := testkit.Must(New(inputs(t)))
	rows, _ := e.paperRows(func(Run) Outcome { return Outcome{} })
	labels := map[string]int{}
	for _, r := range rows {
		labels[r.label]++
		for name, text := range map[string]string{"figure": r.figure, "what": r.what, "paper": r.paper, "ours": r.ours, "seen": r.seen, "why": r.why} {
			if text == "" {
				t.Errorf("%s: %s is empty", r.label, name)
			}
		}
		if r.status != reproduced && r.status != approximated && r.status != impossible {
			t.Errorf("%s: status %q", r.label, r.status)
		}
	}
	for _, label := range paperFigures {
		if labels[label] != 1 {
			t.Errorf("%s has %d rows, want 1", label, labels[label])
		}
	}
}

// TestPageNeedsAllRuns checks that a page is not made of some of its runs.
func TestPageNeedsAllRuns(t *testing.T) {
	e := testkit.Must(New(inputs(t)))
	outcomes := map[Run]Outcome{}
	for _, r := range e.Runs() {
		if _, twice := outcomes[r]; twice {
			t.Errorf("listed twice: %s", r)
		}
		outcomes[r] = Outcome{}
	}
	if _, err := e.Page(outcomes); err != nil {
		t.Error(err)
	}
	one := e.Runs()[7]
	delete(outcomes, one)
	if _, err := e.Page(outcomes); err == nil || !strings.Contains(err.Error(), one.String()) {
		t.Errorf("without a run: %v", err)
	}
}

// TestBadInputs lists what New refuses.
func TestBadInputs(t *testing.T) {
	for want, edit := range map[string]func(*Inputs){
		"are required":             func(in *Inputs) { in.Skew = nil },
		`two workloads are named`:  func(in *Inputs) { in.Workloads = append(in.Workloads, in.Workloads[0]) },
		`two profiles are named`:   func(in *Inputs) { in.Engines = append(in.Engines, in.Engines[0]) },
		`field "d0"`:               func(in *Inputs) { in.Engines[0].D0 = 0 },
		"generator \"chat\": rate": func(in *Inputs) { in.Workloads[0].Generator.Rate = 0 },
	} {
		in := inputs(t)
		edit(&in)
		if _, err := New(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	for _, size := range []Size{Full(), Quick()} {
		in := inputs(t)
		in.Size = size
		e := testkit.Must(New(in))
		if len(e.heavyLoads()) == 0 || size.PaperLoads[0] >= heavyLoad || size.PaperReplicas%4 != 0 || len(e.Runs()) < 50 {
			t.Errorf("size %+v", size)
		}
	}
}

// TestCapacity compares the closed forms with simulations: a replica that gets twice its capacity serves about its
// capacity, and a request that is alone has about the latency of the cost model.
func TestCapacity(t *testing.T) {
	e := testkit.Must(New(inputs(t)))
	w := e.workloads["chat"]
	p := e.engines[e.in.Engines[0].Name]
	serve := func(rate, duration float64) (records []replay.Record) {
		source := list{testkit.Must(w.draw(rate, duration, 3))}
		s := testkit.Must(sim.New(sim.Config{Replicas: 1, Profile: p, Policy: roundRobin, Source: &source, Record: func(r *replay.Record) { records = append(records, *r) }}))
		testkit.Must(s.Run(context.Background()))
		return records
	}
	capacity, ended := w.capacity(p), 0
	const duration = 90
	for _, r := range serve(2*capacity, duration) {
		if end := r.Due + r.E2E; end > duration/3 && end < duration {
			ended++
		}
	}
	if got := float64(ended) / (duration * 2 / 3); math.Abs(got/capacity-1) > 0.15 {
		t.Errorf("it serves %.1f requests/s, the closed form says %.1f", got, capacity)
	}
	sum, n := replay.SLO{}, 0.0
	for _, r := range serve(0.02, 40/0.02) {
		if perToken, ok := r.TPOT(); ok {
			sum, n = replay.SLO{TTFT: sum.TTFT + r.TTFT, TPOT: sum.TPOT + perToken}, n+1
		}
	}
	if want := w.alone(p); math.Abs(sum.TTFT/n/want.TTFT-1) > 0.25 || math.Abs(sum.TPOT/n/want.TPOT-1) > 0.05 {
		t.Errorf("alone: TTFT %.4f and TPOT %.4f s, the closed form says %+v", sum.TTFT/n, sum.TPOT/n, want)
	}
}

// TestEvenCuts compares the parts with a count of every token of the sample.
func TestEvenCuts(t *testing.T) {
	e := testkit.Must(New(inputs(t)))
	w, p := e.workloads[e.shareGPT], e.engines[h20Base]
	l := testkit.Must(w.layout(layoutFour, p, 8))
	if !slices.Equal(l.Counts, []int{2, 2, 2, 2}) || len(l.Cuts) != 3 || !slices.IsSorted(l.Cuts) {
		t.Fatalf("layout %+v", l)
	}
	parts, total := [4]float64{}, 0.0
	stage := func(length float64) (i int) {
		for i < 3 && length >= float64(l.Cuts[i]) {
			i++
		}
		return i
	}
	for _, r := range w.sample[:1000] {
		i := float64(r.Input)
		parts[stage(i)] += p.D2*i + p.D3*i*i
		for k := range r.Output {
			parts[stage(i+float64(k))] += p.D1 + p.D4*(i+float64(k))
		}
	}
	for _, v := range parts {
		total += v
	}
	for i, v := range parts {
		if share := v / total; share < 0.18 || share > 0.32 {
			t.Errorf("stage %d has %.2f of the work, want about a quarter; %+v", i, share, l)
		}
	}
	for _, bad := range []func() (policies.Partition, error){
		func() (policies.Partition, error) { return w.layout(layoutFour, p, 6) },
		func() (policies.Partition, error) { return w.layout("other", p, 8) },
	} {
		if _, err := bad(); err == nil {
			t.Error("a layout that does not exist is accepted")
		}
	}
}

// TestWindow replays a short trace from other places and beyond its end.
func TestWindow(t *testing.T) {
	var all []trace.Request
	for i := range 16 {
		all = append(all, trace.Request{At: time.Duration(i) * time.Second, Input: policies.Tokens(i + 1), Output: 1})
	}
	w := testkit.Must(newWorkload(Workload{Name: "t", Requests: all}))
	got := testkit.Must(w.draw(2, 10, 2))
	if len(got) != 20 || got[0].Input != 3 || got[13].Input != 16 || got[14].Input != 1 || got[0].At != 0 {
		t.Errorf("%d requests, %+v", len(got), got[:3])
	}
	if !slices.IsSortedFunc(got, func(a, b trace.Request) int { return int(a.At - b.At) }) {
		t.Error("the requests are not sorted by arrival")
	}
	if rate := trace.Rate(got); math.Abs(rate-2) > 1e-6 {
		t.Errorf("%v requests/s, want 2", rate)
	}
}

// TestDerive checks that a derived profile of the same model and device is the measured one, and the direction of
// every difference.
func TestDerive(t *testing.T) {
	h200 := testkit.Must(cost.Builtin("h200-llama-3.1-8b"))
	same := derive("same", h200, costfit.Llama8B(), device{989e12, 141e9}, 1)
	for name, pair := range map[string][2]float64{"d0": {same.D0, h200.D0}, "d2": {same.D2, h200.D2}, "d3": {same.D3, h200.D3}, "d4": {same.D4, h200.D4}, "kv": {float64(same.KVTokens), float64(h200.KVTokens)}} {
		if math.Abs(pair[0]/pair[1]-1) > 0.01 {
			t.Errorf("%s is %g, the profile has %g", name, pair[0], pair[1])
		}
	}
	engines := testkit.Must(paperEngines())
	small, large, two, four := engines[h20Small], engines[h20Large], engines[h20TwoGPU], engines[h20FourGPU]
	if !(small.D0 < large.D0 && small.D2 < large.D2 && small.D4 < large.D4 && small.KVTokens > large.KVTokens) {
		t.Errorf("a larger model is not slower: %+v, %+v", small, large)
	}
	if !(four.D0 < two.D0 && four.D4 < two.D4 && four.KVTokens > 2*two.KVTokens) {
		t.Errorf("more GPUs are not faster: %+v, %+v", two, four)
	}
	if l40 := engines[l40Base]; l40.KVTokens > 200_000 || l40.D4 < 2*testkit.Must(cost.Builtin("rtxpro6000-llama-3.1-8b")).D4 {
		t.Errorf("an L40 is too good: %+v", l40)
	}
}

// TestPredict fits requests whose latencies follow the QoE model exactly, but for one in ten.
func TestPredict(t *testing.T) {
	p := testkit.Must(cost.Builtin("h200-llama-3.1-8b"))
	var records []replay.Record
	for i := range 200 {
		input := policies.Tokens(100 + 37*(i%29))
		tokens := int64(10 + i%7)
		perToken := p.QoEModel().OfRequest(policies.Batch{N: 1, SumI: float64(input), SumI2: float64(input * input), SumL: float64(input) + float64(tokens)/2})
		e2e := perToken * float64(tokens)
		records = append(records, replay.Record{Due: float64(10 * i), Input: input, Output: policies.Tokens(tokens), Tokens: tokens, TTFT: e2e / float64(tokens), Last: e2e, E2E: e2e})
	}
	got := testkit.Must(predict(records, p))
	if got.Requests != 100 || got.Regressed.Mean > 0.002 || got.Derived.Mean > 0.002 || got.Static.Mean < 2*got.Regressed.Mean {
		t.Errorf("%d predicted, errors %.4f regressed, %.4f derived, %.4f static", got.Requests, got.Regressed.Mean, got.Derived.Mean, got.Static.Mean)
	}
	sum := 0.0
	for _, share := range got.Static.Shares {
		sum += share
	}
	if math.Abs(sum-1) > 1e-9 {
		t.Errorf("the shares of the errors add up to %v", sum)
	}
	if few := testkit.Must(predict(records[:10], p)); few.Requests != 0 {
		t.Errorf("ten requests are fitted: %+v", few)
	}
}

// TestComparePrediction checks the words for the ratios of the fitted model's errors to the static predictor's.
func TestComparePrediction(t *testing.T) {
	for ratios, want := range map[span]string{
		{0.1, 0.49}: "yes: less than half of the static predictor's at every load",
		{0.1, 0.96}: "partly: below the static predictor's at every load",
		{0.7, 1.1}:  "partly: below the static predictor's at some loads",
		{1, 1.1}:    "no",
		noSpan:      "not measured",
	} {
		if got := comparePrediction(ratios); got != want {
			t.Errorf("%v: %q, want %q", ratios, got, want)
		}
	}
}

// TestWordsFollowFigures gives Cascade figures at one point that are worse, better and equal, and reads what the
// page says.
func TestWordsFollowFigures(t *testing.T) {
	in := inputs(t)
	in.Size.RouterSeeds = interval.MinRuns
	e := testkit.Must(New(in))
	outcome := func(policy string, seed uint64) Outcome {
		noise := 1 + 0.01*float64(seed)
		o := Outcome{Requests: 100, TTFT: Summary{Mean: 1 * noise, P95: 2 * noise}, TPOT: Summary{Mean: 0.1 * noise}, Normal: Summary{Mean: 0.2 * noise, P99: 1 * noise}, LongestNL: Summary{P99: 2 * noise}, TokensPerSecond: 1000 * noise}
		switch policy {
		case sim.Cascade:
			o.TTFT.Mean *= 0.5                    // better than all
			o.LongestNL.P99 *= 1.4                // worse than all
			o.TokensPerSecond *= 0.8              // fewer than all
			o.TPOT.Mean *= 1 + 0.001*(noise-1.03) // neither
		case "prefix-tree":
			o.LongestNL.P99 *= 0.9
		}
		return o
	}
	get := func(r Run) Outcome { return outcome(r.Policy, r.Seed) }
	_, verdicts := e.compareRouters(get)
	s := verdictSection(verdicts, in.Size)
	text := strings.Join(append(s.Paragraphs, s.List...), "\n")
	for _, want := range []string{
		"It is worse than the best rival in 8 comparisons.",
		"chat at load 1.00, case A (sum): by longest tenth, p99 Cascade loses to prefix-tree, × 1.56 (1.56–1.56).",
		"by tokens/s Cascade loses to least-load, × 0.80 (0.80–0.80).",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the section does not say %q:\n%s", want, text)
		}
	}
	if got := countVerdicts(verdicts, in.Size); !strings.Contains(got, "better in 4 of 28 comparisons, worse in 8, and in 16 the intervals do not decide") {
		t.Error(got)
	}
	if strings.Contains(text, "TTFT mean Cascade loses") || strings.Index(text, "prefix-tree") > strings.Index(text, "tokens/s") {
		t.Errorf("a gain is called a loss, or the losses are not sorted:\n%s", text)
	}
}

// TestCompareClaims checks the words for a claim of a reduction by 30 to 60 %, and of a throughput of 2.
func TestCompareClaims(t *testing.T) {
	lower, higher := comparison{metric: ttftMean}, comparison{metric: throughput}
	for _, c := range []struct {
		comparison
		claimed, seen span
		want          string
	}{
		{lower, span{1, 1}, span{0.98, 1.02}, "as claimed"},
		{lower, span{1, 1}, span{0.9, 0.95}, "more than claimed"},
		{lower, span{1, 1}, span{1.06, 1.06}, "no: it is worse"},
		{lower, less(.3, .6), span{0.5, 0.6}, "as claimed"},
		{lower, less(.3, .6), span{0.2, 0.3}, "more than claimed"},
		{lower, less(.3, .6), span{0.5, 0.9}, "as claimed at some loads, less at others"},
		{lower, less(.3, .6), span{0.5, 1.2}, "as claimed at some loads, worse at others"},
		{lower, less(.3, .6), span{0.8, 0.9}, "better, by less"},
		{lower, less(.3, .6), span{0.8, 1.01}, "better at some loads, by less"},
		{lower, less(.3, .6), span{0.99, 1.01}, "no difference"},
		{lower, less(.3, .6), span{1.2, 1.4}, "no: it is worse"},
		{lower, less(.3, .6), span{0.8, 1.2}, "better at some loads, worse at others"},
		{lower, less(.3, .6), span{0.99, 1.2}, "no: worse at some loads"},
		{lower, less(.3, .6), span{1e300, -1e300}, "not measured"},
		{higher, span{2, 2}, span{2.5, 3}, "more than claimed"},
		{higher, span{2, 2}, span{1.5, 2.5}, "as claimed at some loads, less at others"},
		{higher, span{2, 2}, span{1.2, 1.3}, "better, by less"},
		{higher, span{2, 2}, span{0.7, 0.8}, "no: it is worse"},
	} {
		if got := c.compare(c.claimed, c.seen); got != c.want {
			t.Errorf("claimed %v, seen %v: %q, want %q", c.claimed, c.seen, got, c.want)
		}
	}
	if got := less(.3, .6).changes(); got != "−60 % … −30 %" {
		t.Error(got)
	}
}

// TestMeasurement measures three requests and two batches by hand.
func TestMeasurement(t *testing.T) {
	m := measurement{run: Run{Seconds: 10, Warm: 4}, alone: replay.SLO{TTFT: 0.1, TPOT: 0.01}}
	for _, r := range []replay.Record{
		{Due: 1, Input: 9, Tokens: 100, TTFT: 1, Last: 4, E2E: 4},                      // arrives in the warm-up, ends after it
		{Due: 5, Input: 10, Tokens: 11, TTFT: 0.4, Last: 0.8, E2E: 0.8},                // attains 5 ×
		{Due: 6, Input: 20, Tokens: 21, TTFT: 1.5, Last: 2.5, E2E: 2.5},                // attains 20 ×
		{Due: 9, Input: 30, Tokens: 1, TTFT: 3, Last: 3, E2E: 3},                       // ends after the last arrival
		{Due: 9, Input: 5, Error: sim.TooLong, Message: "too long", Tokens: 0, E2E: 0}, // fails
	} {
		m.add(&r)
	}
	m.inspect(0, []policies.Tokens{100, 300})
	m.inspect(1, []policies.Tokens{100})
	var o Outcome
	m.finish(&o)
	if o.Requests != 4 || o.Failed != 1 || o.TokensPerSecond != 132.0/6 || o.LongestNL.Mean != 3 || math.Abs(o.TTFT.Mean-4.9/3) > 1e-12 {
		t.Errorf("%+v", o)
	}
	if o.Attained != [3]float64{0.25, 0.25, 0.5} {
		t.Errorf("attained %v", o.Attained)
	}
	if o.BatchCV != 0.5 || o.BatchSpread != 1.5 || o.BatchP50 != 300 {
		t.Errorf("batches: %+v", o)
	}
	if got := variation([]uint64{9, 1, 3, 9}, 1, 3); got != 0.5 {
		t.Errorf("variation %v, want 0.5", got)
	}
}
