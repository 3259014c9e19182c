package sim

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/trace"
)

// TestSingleRequest compares with the sum of its iterations: a prompt of two chunks, and 99 decodes.
func TestSingleRequest(t *testing.T) {
	_, records := run(t, Config{}, &requests{{At: time.Second, Input: 10_000, Output: 100}})
	p := profile
	prompt := func(from, to float64) float64 { return p.D0 + p.D2*(to-from) + p.D3*(to*to-from*from) }
	ttft := prompt(0, 8192) + prompt(8192, 10_000)
	last := ttft
	for length := 10_001; length < 10_100; length++ {
		last += p.D0 + p.D1 + p.D4*float64(length)
	}
	r := records[0]
	if len(records) != 1 || r.Due != 1 || !near(r.TTFT, ttft, 1e-6) || !near(r.Last, last, 1e-6) || r.E2E != r.Last || r.Tokens != 100 {
		t.Errorf("%+v, want first after %v s and last after %v s", r, ttft, last)
	}
}

// TestFullBatch compares requests that fill the batch, and one that waits for a place, with the sum of
// the iterations.
func TestFullBatch(t *testing.T) {
	c := Config{MaxBatch: 4}
	source := requests{}
	for range 5 {
		source = append(source, trace.Request{Input: 100, Output: 11})
	}
	_, records := run(t, c, &source)
	p := profile
	prompts := func(n float64) float64 { return n * (p.D2*100 + p.D3*100*100) }
	decode := func(lengths ...float64) (t float64) {
		for _, l := range lengths {
			t += p.D1 + p.D4*l
		}
		return t
	}
	at := p.D0 + prompts(1) // the first request is alone
	want := [5]float64{at}
	at += p.D0 + prompts(3) + decode(101) // the next three join it
	want[1], want[2], want[3] = at, at, at
	for l := 102.0; l <= 110; l++ {
		at += p.D0 + decode(l, l-1, l-1, l-1)
	}
	firstEnds := at
	at += p.D0 + prompts(1) + decode(110, 110, 110) // the fifth has the place of the first
	want[4] = at
	for _, r := range records {
		if !near(r.TTFT, want[r.Index], 1e-6) {
			t.Errorf("request %d: first token after %v s, want %v s", r.Index, r.TTFT, want[r.Index])
		}
	}
	if r := records[0]; r.Index != 0 || !near(r.Last, firstEnds, 1e-6) {
		t.Errorf("%+v ended first, want request 0 after %v s", r, firstEnds)
	}
}

// TestMD1 compares one request at a time, all equally long, with Poisson arrivals: every wait with
// Lindley's recursion, and their mean with the Pollaczek–Khinchine formula.
func TestMD1(t *testing.T) {
	p := profile
	service := p.D0 + p.D2*500 + p.D3*500*500
	for _, c := range []struct{ load, within float64 }{{0.3, 0.02}, {0.7, 0.05}, {0.9, 0.15}} {
		rng := rand.New(rand.NewPCG(7, 0))
		var source requests
		var waits []float64
		at, free := 0.0, 0.0
		for range 20_000 {
			at += rng.ExpFloat64() * service / c.load
			due := time.Duration(at * 1e9)
			source = append(source, trace.Request{At: due, Input: 500, Output: 1})
			free = max(free, due.Seconds()) + service
			waits = append(waits, free-due.Seconds())
		}
		result, records := run(t, Config{MaxBatch: 1}, &source)
		for i, r := range records {
			if math.Abs(r.TTFT-waits[i]) > 1e-4 {
				t.Fatalf("load %v: request %d waited %v s, want %v s", c.load, i, r.TTFT, waits[i])
			}
		}
		want := service + c.load*service/(2*(1-c.load))
		if got := result.Engine.TTFT.Mean; !near(got, want, c.within) {
			t.Errorf("load %v: mean time to the token %v s, want %v s", c.load, got, want)
		}
		if busy := result.Engines.BusySeconds / result.Engine.Seconds; !near(busy, c.load, 0.02) {
			t.Errorf("load %v: busy %v of the time", c.load, busy)
		}
	}
}
