package planner

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
)

// workload returns the flow of requests of one shape on so many replicas, at so many a second.
// An engine computes 20,000 prompt tokens a second, and 50 iterations.
func workload(rate float64, input, output policies.Tokens, replicas int) policies.Workload {
	w := policies.Workload{
		Flow: policies.NewFlow(policies.BucketEdges(32768, 4)), Replicas: replicas,
		Cost:     policies.Cost{D0: 0.01, D1: 1e-4, D2: 5e-5, D4: 2e-8},
		Capacity: policies.Capacity{KV: 400_000, Batch: 256},
	}
	add(&w, rate, input, output)
	return w
}

func add(w *policies.Workload, rate float64, input, output policies.Tokens) {
	f := w.Flow
	b := policies.BucketOf(f.Edges, input)
	f.Arrivals[b] += rate
	f.Prefill[b] += rate * float64(input)
	f.Prefill2[b] += rate * float64(input*input)
	for l := input + 1; l <= input+output; l++ {
		c := policies.BucketOf(f.Edges, l)
		f.Tokens[c] += rate
		f.Reads[c] += rate * float64(l)
		if l == f.Edges[c] {
			f.Crossings[c] += rate
		}
	}
}

// TestQuotes checks the decisions that need no model: where a split cannot pay, and where it must.
func TestQuotes(t *testing.T) {
	for _, c := range []struct {
		name string
		w    policies.Workload
		edit func(*policies.Workload)
		want string
	}{
		{name: "short prompts", w: workload(40, 500, 100, 8), want: "none of 8, moved 0"},
		{name: "an idle fleet", w: workload(0.01, 8000, 100, 8), want: "none of 8, moved 0.01"},
		{name: "long prompts, long answers", w: workload(6, 8000, 600, 8), want: "3 of 8, moved 6"},
		{name: "moves are dear", w: workload(6, 8000, 600, 8), edit: func(w *policies.Workload) { w.Transfer.Base = 20 }, want: "none of 8, moved 6"},
		{name: "moves are few", w: workload(6, 8000, 600, 8), edit: func(w *policies.Workload) { w.Capacity.TransferRate = 0.5 }, want: "none of 8, moved 6"},
		{name: "links are slow", w: workload(6, 8000, 600, 8), edit: func(w *policies.Workload) { w.Transfer.PerToken = 1.01 * 7 / (6 * 8000) }, want: "none of 8, moved 6"},
		{name: "one replica", w: workload(1, 8000, 100, 1), want: "none of 1, moved 1"},
		{name: "too much", w: workload(100, 8000, 100, 8), want: "infeasible"},
		{name: "invalid", w: policies.Workload{}, want: "invalid"},
		{name: "cached prompts", w: workload(6, 8000, 600, 8), edit: func(w *policies.Workload) {
			for b := range w.Flow.Prefill {
				w.Flow.Prefill[b], w.Flow.Prefill2[b] = w.Flow.Prefill[b]/8, w.Flow.Prefill2[b]/64
			}
		}, want: "none of 8, moved 0"},
	} {
		if c.edit != nil {
			c.edit(&c.w)
		}
		q, err := PricePrefill(partition.Exact{}, c.w)
		got := fmt.Sprint("none of ", len(q.Options), ", moved ", q.Moved)
		switch {
		case errors.Is(err, policies.ErrInfeasible):
			got = "infeasible"
		case err != nil:
			got = "invalid"
		case q.Pays():
			got = fmt.Sprint(q.Best, " of ", len(q.Options), ", moved ", q.Moved)
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s: %.4v", c.name, got, c.want, q)
		}
	}
}

// TestBest compares the choice with the least cost over all options, whose parts add up, and
// checks that the pool's work and what stays in the stages are all of the workload's.
func TestBest(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	pays := 0
	for range 60 {
		w := workload(rng.Float64()*8, 200, policies.Tokens(1+rng.IntN(400)), 2+rng.IntN(9))
		add(&w, rng.Float64()*4, policies.Tokens(2000+rng.IntN(9000)), policies.Tokens(1+rng.IntN(900)))
		w.Transfer = policies.Transfer{Base: rng.Float64() * 0.1, PerToken: rng.Float64() * 1e-5}
		q, err := PricePrefill(partition.Exact{}, w)
		if errors.Is(err, policies.ErrInfeasible) {
			continue
		}
		testkit.NoError(t, err)
		if q.Pays() {
			pays++
		}
		least := math.Inf(1)
		for k, o := range q.Options {
			if sum := o.Decode + o.Wait + o.Move; o.Prefill != k || !math.IsInf(o.Cost, 1) && !(math.Abs(o.Cost-sum) <= 1e-9*sum) {
				t.Errorf("option %d: %+v", k, o)
			}
			least = min(least, o.Cost)
			gain, ok := PrefillGain(partition.Exact{}, w, k)
			if want := 1 - o.Cost/q.Options[0].Cost; ok && gain != want || ok != (k > 0 && !math.IsInf(want, 0) && !math.IsNaN(want)) {
				t.Errorf("option %d gains %v, %v, want %v", k, gain, ok, want)
			}
		}
		if q.Options[q.Best].Cost != least || q.Gain() < 0 || q.Gain() > 1 {
			t.Errorf("best %d, gain %v: %+v", q.Best, q.Gain(), q.Options)
		}
	}
	if pays == 0 {
		t.Error("no workload for which a split pays")
	}
}

// TestLargeFleet checks that the time to price a fleet does not grow with its size: the options
// are evenly apart, and their prices those of the same numbers of prefill replicas.
func TestLargeFleet(t *testing.T) {
	for _, replicas := range []int{maxPrefillOptions, maxPrefillOptions + 1, 10*maxPrefillOptions + 7} {
		w := workload(float64(replicas)*0.75, 8000, 600, replicas)
		q, err := PricePrefill(partition.Exact{}, w)
		testkit.NoError(t, err)
		step := q.Options[1].Prefill
		if n := len(q.Options); n > maxPrefillOptions || n*step < replicas || (n-1)*step >= replicas || step > 1 && n*(step-1) >= replicas {
			t.Errorf("%d replicas: %d options %d apart", replicas, n, step)
		}
		for i, o := range q.Options {
			if o.Prefill != i*step {
				t.Errorf("%d replicas: option %d has %d prefill replicas", replicas, i, o.Prefill)
			}
		}
		if gain, ok := PrefillGain(partition.Exact{}, w, q.Options[q.Best].Prefill); !ok || gain != q.Gain() || !q.Pays() {
			t.Errorf("%d replicas: %d save %v, and a gain of %v was priced", replicas, q.Options[q.Best].Prefill, gain, q.Gain())
		}
	}
}

// TestWait compares the waiting time with that of a simulated queue: prompts of two lengths that
// arrive at random, and k replicas that begin them in the order of their arrival.
func TestWait(t *testing.T) {
	for _, c := range []struct {
		k                       int
		rate, short, long, mix  float64 // mix is the share of long prompts
		tolerance, other, least float64
	}{
		{k: 1, rate: 2, short: 0.1, long: 1, mix: 0.2, tolerance: 0.1},
		{k: 1, rate: 1, short: 0.5, long: 0.5, mix: 0.5, tolerance: 0.1},
		{k: 1, rate: 1, short: 0.1, long: 1, mix: 0.2, other: 0.4, tolerance: 0.1},
		{k: 3, rate: 7, short: 0.1, long: 1, mix: 0.25, tolerance: 0.15},
		{k: 8, rate: 20, short: 0.1, long: 1, mix: 0.25, tolerance: 0.2, least: 0.01},
	} {
		var q promptLoad
		q.add(c.rate*(1-c.mix), c.short)
		q.add(c.rate*c.mix, c.long)
		rng := rand.New(rand.NewPCG(1, uint64(c.k)))
		free := make([]float64, c.k)
		now, waited := 0.0, 0.0
		const prompts = 400_000
		for range prompts {
			now += rng.ExpFloat64() / c.rate
			seconds := c.short
			if rng.Float64() < c.mix {
				seconds = c.long
			}
			i := slices.Index(free, slices.Min(free))
			begin := max(now, free[i])
			waited += begin - now
			free[i] = begin + seconds/(1-c.other)
		}
		got, want := q.wait(c.k, c.other), waited/prompts
		if math.Abs(got-want) > c.tolerance*want+c.least {
			t.Errorf("%d replicas, %v busy: wait %.4g s, simulated %.4g s", c.k, q.work/float64(c.k), got, want)
		}
	}
	for _, q := range []promptLoad{{}, {rate: 2, work: 2, squares: 2}} {
		if got, want := q.wait(1, 0), map[bool]float64{true: 0, false: math.Inf(1)}[q.rate == 0]; got != want {
			t.Errorf("%+v: wait %v, want %v", q, got, want)
		}
	}
}

// TestStagesOfThePartitioner checks that every option is priced with the stages of the given partitioner:
// with a slack, those are fewer, and none costs less than the least cost.
func TestStagesOfThePartitioner(t *testing.T) {
	w := workload(6, 200, 400, 8)
	add(&w, 1, 3000, 300)
	add(&w, 0.5, 9000, 600)
	few := partition.Exact{Slack: 0.2}
	least, err := PricePrefill(partition.Exact{}, w)
	testkit.NoError(t, err)
	got, err := PricePrefill(few, w)
	testkit.NoError(t, err)
	fewer := 0
	for k, o := range got.Options {
		if o.Decode < least.Options[k].Decode {
			t.Errorf("%d prefill replicas: stages cost %v, and %v at the least", k, o.Decode, least.Options[k].Decode)
		}
		if o.Stages < least.Options[k].Stages {
			fewer++
		}
	}
	want, err := few.Partition(w)
	if o := got.Options[0]; err != nil || o.Stages != len(want.Counts) || o.Decode != want.Cost || fewer == 0 {
		t.Errorf("%d stages that cost %v, want %d that cost %v, %v; %d options with fewer stages than the least cost has", o.Stages, o.Decode, len(want.Counts), want.Cost, err, fewer)
	}
	if gain, ok := PrefillGain(few, w, 2); !ok || gain != 1-got.Options[2].Cost/got.Options[0].Cost {
		t.Errorf("gain %v, %v; options %+v", gain, ok, got.Options)
	}
}
