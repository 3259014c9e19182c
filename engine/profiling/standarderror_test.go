package profiling

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// model is an engine's iteration model, of which simulate makes a record.
type model struct{ d0, d1, d2, d4, kappa float64 }

var fast = model{d0: 6e-3, d1: 4e-6, d2: 27e-6, d4: 44e-9, kappa: 1.13}

// simulate returns the log of a cell: all requests of the batch share the iterations, and a request that has
// ended is replaced at once. In each iteration, disturb returns what else the machine did.
func simulate(m model, g Grid, c Cell, rng *rand.Rand, requests int, disturb func() float64) Log {
	l := Log{Cell: c, Running: c.Batch}
	active := make([]*Request, c.Batch)
	now := 0.0
	for len(l.Requests) < requests {
		prefill, n, held, longest := 0.0, 0.0, 0.0, 0.0
		for slot, r := range active {
			if r == nil {
				active[slot] = &Request{Slot: slot, Prompt: c.Prompt(slot, rng), Output: g.OutputLength(rng), Start: now}
				prefill += m.d2 * float64(active[slot].Prompt)
				continue
			}
			length := float64(r.Prompt) + 1 + float64(len(r.Steps))
			n, held, longest = n+1, held+length, max(longest, length)
		}
		seconds := m.d0 + prefill + disturb()
		if n > 0 {
			seconds += m.d1*n + m.d4*(held+m.kappa*(longest-held/n))
		}
		step := int64(math.Round(seconds * 1e6))
		for slot, r := range active {
			if r.First == 0 {
				r.First = now + float64(step)*1e-6
			} else {
				r.Steps = append(r.Steps, step)
			}
			if 1+len(r.Steps) == int(r.Output) {
				r.End = now + float64(step)*1e-6
				l.Requests, active[slot] = append(l.Requests, *r), nil
			}
		}
		now += float64(step) * 1e-6
	}
	for _, r := range active {
		if r != nil && r.First > 0 {
			r.End, r.Cut = now, true
			l.Requests = append(l.Requests, *r)
		}
	}
	l.Seconds = now
	l.SetLoads()
	return l
}

// measured returns the logs of a grid with mixed cells. On a busy machine each cell has a different share of it,
// and now and then an iteration stalls.
func measured(g Grid, seed uint64, busy bool) []Log {
	rng := rand.New(rand.NewPCG(seed, 7))
	var logs []Log
	for _, c := range append(g.Cells(), g.MixedCells()...) {
		disturb := func() float64 { return 0 }
		if busy {
			share := 0.6e-3 * rng.Float64()
			disturb = func() float64 {
				if rng.IntN(100) == 0 {
					return share + 20e-3*rng.ExpFloat64()
				}
				return share
			}
		}
		logs = append(logs, simulate(fast, g, c, rng, max(12, 2*c.Batch), disturb))
	}
	return logs
}

var (
	shortGrid  = Grid{Shortest: 50, Longest: 800, Factor: 4, MaxBatch: 8, Output: 40}
	middleGrid = Grid{Shortest: 100, Longest: 6400, Factor: 4, MaxBatch: 8, Output: 40}
	longGrid   = Grid{Shortest: 100, Longest: 25600, Factor: 4, MaxBatch: 16, Output: 64}
)

// TestErrorsOfABusyMachine measures cells for which the errors of requests, taken as independent, would be several
// times too small: the true values of what distinguishes the cells must be within the stated errors. Of cells that
// are too short for κ, fit says so.
func TestErrorsOfABusyMachine(t *testing.T) {
	const runs = 40
	farKappa, far, warned := 0, 0, 0
	for seed := range uint64(runs) {
		f := testkit.Must(Fit(measured(middleGrid, seed, true), FitOptions{}))
		if math.Abs(f.Kappa-fast.kappa) > 2*float64(f.StandardErrors.Kappa) {
			farKappa++
		}
		if math.Abs(f.D4-fast.d4) > 2*float64(f.StandardErrors.D4) {
			far++
		}
		f = testkit.Must(Fit(measured(shortGrid, seed, true), FitOptions{}))
		if strings.Contains(strings.Join(f.Warnings(), "\n"), "do not determine κ") {
			warned++
		}
	}
	t.Logf("of %d runs, κ was more than two standard errors off in %d, d4 in %d; a warning in %d of short cells", runs, farKappa, far, warned)
	if farKappa > runs/5 || far > runs/5 || warned < runs/2 {
		t.Errorf("of %d runs, κ was more than two standard errors off in %d, d4 in %d; a warning in %d of short cells", runs, farKappa, far, warned)
	}
}

// TestUndeterminedKappa checks that a κ which is not determined is in no profile.
func TestUndeterminedKappa(t *testing.T) {
	f := testkit.Must(Fit(measured(shortGrid, 1, true), FitOptions{}))
	f.Kappa, f.StandardErrors.Kappa = 4.8, 5
	given := Given{Name: "mine", KVBytesPerToken: 1, KVTokens: 1000, MaxBatch: 8}
	p := testkit.Must(f.Profile(Record{}, given))
	if p.Kappa != 0 || !slices.Contains(p.How, "kappa not determined by the measurements, 4.8 with a standard error of 5: 0") {
		t.Errorf("κ %v: %q", p.Kappa, p.How)
	}
	f.StandardErrors.Kappa = 2
	if p := testkit.Must(f.Profile(Record{}, given)); p.Kappa != 4.8 {
		t.Errorf("κ is %v in the profile", p.Kappa)
	}
	f.StandardErrors.D0 = StandardError(math.Inf(1))
	if text := string(testkit.Must(json.Marshal(f))); !strings.Contains(text, `"standard_errors":{"qoe":[`) || !strings.Contains(text, `"d0":null`) {
		t.Errorf("a coefficient without a standard error in JSON: %s", text)
	}
}

// TestFitOfAQuietMachine finds the model and has no warning of it.
func TestFitOfAQuietMachine(t *testing.T) {
	f := testkit.Must(Fit(measured(longGrid, 1, false), FitOptions{}))
	for _, c := range f.Coefficients()[5:] {
		want := map[string]float64{"d0": fast.d0, "d1": fast.d1, "d2": fast.d2, "d4": fast.d4, "κ": fast.kappa}[c.Name]
		if math.Abs(c.Value-want) > 0.02*want+1e-10 || want > 0 && !(c.Error < StandardError(0.05*want)) {
			t.Errorf("%s is %.4g ± %.2g, not %.4g", c.Name, c.Value, c.Error, want)
		}
	}
	if w := strings.Join(f.Warnings(), "\n"); strings.Contains(w, "κ") || strings.Contains(w, "bursts") || strings.Contains(w, "d0") || strings.Contains(w, "d4") {
		t.Error(w)
	}
}

// inBursts makes the tokens of a cell come together, every n-th time.
func inBursts(l Log, n int) Log {
	l.Requests = slices.Clone(l.Requests)
	for i, r := range l.Requests {
		steps, waiting := slices.Clone(r.Steps), int64(0)
		for j, step := range steps {
			waiting += step
			steps[j] = 3
			if j%n == n-1 || j == len(steps)-1 {
				steps[j], waiting = waiting, 0
			}
		}
		l.Requests[i].Steps = steps
	}
	l.SetLoads()
	return l
}

// TestBursts checks that a cell whose tokens came in bursts changes nothing but the normalised latency.
func TestBursts(t *testing.T) {
	logs := measured(longGrid, 1, false)
	last := len(longGrid.Cells()) - 1
	with := testkit.Must(Fit(append(slices.Clone(logs[:last]), append([]Log{inBursts(logs[last], 16)}, logs[last+1:]...)...), FitOptions{}))
	// Without requests to hold out, the other cells keep theirs.
	cut := logs[last]
	cut.Running = 0 // a queue
	without := testkit.Must(Fit(append(slices.Clone(logs[:last]), append([]Log{cut}, logs[last+1:]...)...), FitOptions{}))
	for i, c := range with.Coefficients()[5:] {
		if w := without.Coefficients()[5+i]; c != w {
			t.Errorf("%+v with bursts, %+v without the cell", c, w)
		}
	}
	if with.Bursty != 1 || with.Requests <= without.Requests || !strings.Contains(strings.Join(with.Warnings(), "\n"), "Of 1 of the cells only the end-to-end times") {
		t.Errorf("%d cells in bursts, %d requests fitted, %d without: %q", with.Bursty, with.Requests, without.Requests, with.Warnings())
	}
	for i := range logs {
		logs[i] = inBursts(logs[i], 16)
	}
	_, err := Fit(logs, FitOptions{})
	testkit.WantError(t, err, "in every cell most tokens came in bursts")
	// An engine that is this fast, and regular, sends no bursts.
	if l := (Log{Requests: []Request{{Steps: []int64{60, 60, 70, 60}}}}); l.Bursty() {
		t.Error("iterations of 60 µs are taken for bursts")
	}
}
