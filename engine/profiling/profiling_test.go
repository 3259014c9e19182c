package profiling

import (
	"bytes"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

func TestCells(t *testing.T) {
	g := Grid{Shortest: 100, Longest: 1000, Factor: 2, MaxBatch: 5, Output: 10, Context: 900, KVTokens: 2000}
	var got []string
	for _, c := range g.Cells() {
		got = append(got, c.String())
	}
	// The context ends the last bucket at 880, and 4 × 610 tokens exceed the KV cache.
	want := "1 × 100–200 2 × 100–200 4 × 100–200 1 × 200–400 2 × 200–400 4 × 200–400 1 × 400–800 2 × 400–800 1 × 800–880 2 × 800–880"
	if d := cmp.Diff(want, strings.Join(got, " ")); d != "" {
		t.Error(d)
	}
}

// TestGridBounds checks that every grid is refused whose cells cannot be listed: lengths and
// batches would grow past the integers, and start again.
func TestGridBounds(t *testing.T) {
	good := Grid{Shortest: 256, Longest: 4096, Factor: 2, MaxBatch: 8, Output: 128}
	testkit.NoError(t, good.Validate())
	for want, edit := range map[string]func(*Grid){
		"grow from at least 1 token": func(g *Grid) { g.Shortest = 0 },
		"to at most 1000000000":      func(g *Grid) { g.Longest = math.MaxInt64 },
		"the factor":                 func(g *Grid) { g.Factor = 1 << 56 },
		"the largest batch":          func(g *Grid) { g.MaxBatch = 5000 },
		"the mean output":            func(g *Grid) { g.Output, g.Context = 1<<62, 8192 },
		"no cell fits":               func(g *Grid) { g.Context = 300 },
	} {
		g := good
		edit(&g)
		testkit.WantError(t, g.Validate(), want)
	}
}

// TestLengths checks the prompts of both kinds of cells, and the outputs.
func TestLengths(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	g := Grid{Shortest: 100, Longest: 1000, Factor: 2, MaxBatch: 16, Output: 10}
	for range 1000 {
		if n := (Cell{Low: 100, High: 200, Batch: 2}).Prompt(0, rng); n < 100 || n >= 200 {
			t.Fatalf("a prompt of %d tokens in [100, 200)", n)
		}
		if n := g.OutputLength(rng); n < 5 || n > 15 {
			t.Fatalf("an output of %d tokens, 10 on average", n)
		}
	}
	longest := policies.Tokens(0)
	for i, c := range g.MixedCells() {
		sum := policies.Tokens(0)
		for slot := range c.Batch {
			n := c.Prompt(slot, rng)
			sum += n
			longest = max(longest, n)
		}
		if math.Abs(float64(sum-8*c.Low)) > 8 || c.Spread != spreads[i] {
			t.Errorf("%v: the lengths sum up to %d, not 8·%d", c, sum, c.Low)
		}
	}
	if longest < 950 || longest >= 1000 {
		t.Errorf("the longest prompt of mixed cells has %d tokens", longest)
	}
}

func TestSkip(t *testing.T) {
	done := []Log{{Cell: Cell{Low: 100, Batch: 4}, Running: 4}, {Cell: Cell{Low: 200, Batch: 8}, Running: 5}}
	for c, want := range map[Cell]bool{
		{Low: 100, Batch: 16}: false, {Low: 200, Batch: 4}: false, {Low: 200, Batch: 8}: true, {Low: 400, Batch: 16}: true, {Low: 400, Batch: 4}: false,
	} {
		if c.Skip(done) != want {
			t.Errorf("%v: skipped %v", c, !want)
		}
	}
}

func TestSteady(t *testing.T) {
	var equal, noisy []float64
	for i := range 1000 {
		equal, noisy = append(equal, 1), append(noisy, 1+float64(i%2))
	}
	for _, test := range []struct {
		latencies []float64
		batch     int
		want      bool
	}{
		{equal[:8], 1, false}, {equal[:9], 1, true}, {equal[:29], 10, false}, {equal[:30], 10, true},
		{noisy[:100], 1, false}, {noisy[:300], 1, true}, {slices.Concat(noisy[:40], equal[:80]), 40, true},
	} {
		if got := Steady(test.latencies, test.batch); got != test.want {
			t.Errorf("%d latencies of a batch of %d: steady %v", len(test.latencies), test.batch, got)
		}
	}
}

// TestLoads computes by hand: a has 10 prompt tokens and lives from 0 to 4, b has 20 and lives from 2 to 6.
func TestLoads(t *testing.T) {
	l := Log{Cell: Cell{Batch: 2}, Requests: []Request{
		{Prompt: 10, Output: 3, Start: 0, First: 1, End: 4, Steps: []int64{1e6, 2e6}}, // tokens at 1, 2 and 4
		{Prompt: 20, Output: 2, Start: 2, First: 3, End: 6, Steps: []int64{3e6}},      // at 3 and 6
		{Prompt: 7, Start: 6, End: 6, Cut: true},
	}}
	l.SetLoads()
	want := []Load{
		// b is there for 2 of 4 seconds; a's length is 10, 11, 12, 12, b's 20 and 21.
		{N: 1.5, SumI: 10 + 20*2./4, SumI2: 100 + 400*2./4, SumL: (10 + 11 + 12 + 12 + 20 + 21) / 4.},
		{N: 1.5, SumI: 20 + 10*2./4, SumI2: 400 + 100*2./4, SumL: (20 + 21 + 21 + 21 + 12 + 12) / 4.},
		{},
	}
	for i, w := range want {
		if d := cmp.Diff(w, l.Requests[i].Load); d != "" {
			t.Errorf("request %d: %s", i, d)
		}
	}
	if l.Running != 2 {
		t.Errorf("%d ran at once", l.Running)
	}
}

// TestErrors describes four errors by hand.
func TestErrors(t *testing.T) {
	e := summarise([]float64{-0.05, 0.05, 0.25, 7})
	if e.Mean != (0.05+0.05+0.25+7)/4 || e.P50 != 0.05 || e.P90 != 7 || e.Count != 4 {
		t.Errorf("%+v", e)
	}
	share := 0.0
	for _, b := range e.Histogram {
		share += b.Share
		if b.Low == -0.1 && b.Share != 0.25 || b.Low == 0 && b.Share != 0.25 || b.Low == 1.9 && b.Share != 0.25 {
			t.Errorf("bin %+v", b)
		}
	}
	if math.Abs(share-1) > 1e-9 {
		t.Errorf("the histogram has %v of the predictions", share)
	}
}

// synthetic is a record of an engine without noise: alone in it, requests take 10 ms + 1 ms per prompt token for
// the first token, and 5 ms + 10 µs per token of length for the others.
func synthetic() Record {
	rec := Record{Header: Header{Format: Format, Model: "m", Grid: Grid{Shortest: 10, Longest: 100, Factor: 2, MaxBatch: 1, Output: 20}}}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, c := range rec.Grid.Cells() {
		l, now := Log{Cell: c}, 0.0
		for range 20 {
			r := Request{Prompt: c.Prompt(0, rng), Output: rec.Grid.OutputLength(rng), Start: now}
			r.First = now + 10e-3 + 1e-3*float64(r.Prompt)
			r.End = r.First
			for i := range int(r.Output) - 1 {
				r.Steps = append(r.Steps, 5000+10*int64(int(r.Prompt)+1+i))
				r.End += float64(r.Steps[i]) * 1e-6
			}
			l.Requests, now = append(l.Requests, r), r.End
		}
		l.SetLoads()
		rec.Logs = append(rec.Logs, l)
	}
	return rec
}

func TestFit(t *testing.T) {
	rec := synthetic()
	f := testkit.Must(Fit(rec.Logs, FitOptions{}))
	near := func(name string, got, want float64) {
		if math.Abs(got-want) > 0.01*want+1e-9 {
			t.Errorf("%s is %v, not %v", name, got, want)
		}
	}
	near("first token", f.FirstToken, 10e-3)
	near("d2", f.D2, 1e-3)
	near("d4", f.D4, 10e-6)
	// In batches of one, the part of each sequence is not to be distinguished from the fixed part.
	near("d0 + d1", f.D0+f.D1, 5e-3)
	if f.Mixed || f.Kappa != 0 {
		t.Errorf("kappa %v without mixed cells", f.Kappa)
	}
	if f.InterToken.Model.Mean > 1e-3 || f.InterToken.Static.Mean < 0.01 || f.HeldOut < 5 || f.HeldOut+f.Requests != 80 {
		t.Errorf("%d held out of %d: %v", f.HeldOut, f.Requests, f.InterToken)
	}
	again := testkit.Must(Fit(rec.Logs, FitOptions{}))
	if d := cmp.Diff(f, again); d != "" {
		t.Errorf("equal logs, another fit: %s", d)
	}
	if other := testkit.Must(Fit(rec.Logs, FitOptions{Seed: 9})); other.HeldOut == f.HeldOut && other.Normalised.Model.Mean == f.Normalised.Model.Mean {
		t.Error("another seed holds out the same requests")
	}

	p, err := f.Profile(rec, Given{Name: "mine", KVBytesPerToken: 1, KVTokens: 1000})
	testkit.NoError(t, err)
	if p.D2 != math.Round(f.D2*1e8)/1e8 || p.QoE.D0+p.QoE.D1 == 0 || p.MaxBatch != 1 || p.QoE.FitError.Points != f.HeldOut {
		t.Errorf("%+v", p)
	}
	_, err = f.Profile(rec, Given{Name: "mine", KVBytesPerToken: 1})
	testkit.WantError(t, err, "--kv-tokens")
}

func TestFitErrors(t *testing.T) {
	queued := synthetic()
	for i := range queued.Logs {
		queued.Logs[i].Running = 0
	}
	cut := synthetic()
	for i := range cut.Logs {
		cut.Logs[i].Requests = cut.Logs[i].Requests[:1]
	}
	for want, logs := range map[string][]Log{"no complete request": queued.Logs, "too few requests to hold": cut.Logs[:1]} {
		_, err := Fit(logs, FitOptions{})
		testkit.WantError(t, err, want)
	}
	_, err := Fit(nil, FitOptions{HeldOut: 1})
	testkit.WantError(t, err, "share of held-out")
}

// record returns the bytes of a file.
func record(t testing.TB, rec Record) []byte {
	var b bytes.Buffer
	testkit.NoError(t, AppendLine(&b, rec.Header))
	for _, l := range rec.Logs {
		testkit.NoError(t, AppendLine(&b, l))
	}
	return b.Bytes()
}

// TestRecord reads back what was written, whatever of the last line is missing.
func TestRecord(t *testing.T) {
	want := synthetic()
	whole := record(t, want)
	want.Size = int64(len(whole))
	got := testkit.Must(ReadRecord(bytes.NewReader(whole)))
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	last := bytes.LastIndexByte(whole[:len(whole)-1], '\n') + 1
	for _, end := range []int{last, last + 1, len(whole) - 1} {
		got := testkit.Must(ReadRecord(bytes.NewReader(whole[:end])))
		if len(got.Logs) != len(want.Logs)-1 || got.Size != int64(last) {
			t.Errorf("cut at %d: %d cells, %d bytes", end, len(got.Logs), got.Size)
		}
	}
	if _, err := ReadRecord(bytes.NewReader(whole[:10])); !errors.Is(err, io.EOF) {
		t.Errorf("without a header: %v", err)
	}
	head := string(record(t, Record{Header: Header{Format: Format}}))
	for text, want := range map[string]string{
		"{}\n":                           `line 1: the format is ""`,
		`{"name":"a profile"}`:           "no record of measurements", // not a cut header: whoever continues it would overwrite it
		head + "{\"batch\":0}\n":         "line 2: the batch is 0",
		head + "{\"batch\":1,\"x\":1}\n": "unknown field",
		head + `{"batch":1,"requests":[{"start":2,"end":1}]}` + "\n":                   "request 0: start 2",
		head + `{"batch":1,"requests":[{"prompt":-1}]}` + "\n":                         "request 0: prompt -1",
		head + `{"batch":1,"requests":[{"end":1,"steps_us":[99999999999999]}]}` + "\n": "a step of",
	} {
		_, err := ReadRecord(strings.NewReader(text))
		testkit.WantError(t, err, want)
	}
}

func TestContinues(t *testing.T) {
	h := synthetic().Header
	testkit.NoError(t, h.Continues(h))
	for want, edit := range map[string]func(*Header){
		"it measures m": func(h *Header) { h.Model = "other" },
		"another grid":  func(h *Header) { h.Grid.Factor = 4 },
		"other options": func(h *Header) { h.Stops = true },
	} {
		other := h
		edit(&other)
		testkit.WantError(t, h.Continues(other), want)
	}
}

// FuzzReadRecord checks that no record file makes the reader, the loads or the fit fail otherwise than by an
// error.
func FuzzReadRecord(f *testing.F) {
	f.Add(record(f, synthetic()))
	f.Add([]byte(`{"format":"cascade-profile-record/1"}` + "\n" + `{"batch":1,"running":1,"requests":[{"prompt":1,"output":2,"end":1,"first":0.5,"steps_us":[-5,7]}]}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		rec, err := ReadRecord(bytes.NewReader(data))
		if err != nil {
			return
		}
		for i := range rec.Logs {
			rec.Logs[i].SetLoads()
		}
		fitted, err := Fit(rec.Logs, FitOptions{})
		if err != nil {
			return
		}
		if p, err := fitted.Profile(rec, Given{Name: "x", KVBytesPerToken: 1, KVTokens: 1}); err == nil {
			testkit.NoError(t, p.Validate())
		}
	})
}
