package stageplan

import (
	"encoding/json"
	"math"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/planner"
)

// TestPlanOnOwnLengths plans by the paper's policy, for a sample with the lengths of public
// traces and on every shipped profile: each bucket has the inputs of the requests that pass
// through it, and the long ones get stages of their own. With the mean inputs of all requests
// in every bucket, one stage was best.
func TestPlanOnOwnLengths(t *testing.T) {
	mix, _ := trace.Named("mixed")
	mix.Requests, mix.Seed, mix.Rate = 5000, 1, 12
	requests := testkit.Must(mix.Generate())
	for _, profile := range cost.Names() {
		c := Config{
			Profile: testkit.Must(config.LoadProfile(profile, ".")), Replicas: 8, Context: 131072,
			Limits: policies.Limits{Stages: policies.MaxStages},
		}
		w := testkit.Must(c.Workload(requests))
		var sum policies.Batch
		for b, x := range w.Snapshot {
			sum = sum.Plus(x)
			if b+1 == len(w.Flow.Edges) || x.N == 0 {
				continue
			}
			low, high, mean := float64(w.Flow.Edges[b]), float64(w.Flow.Edges[b+1]), x.SumL/x.N
			if input := x.SumI / x.N; mean < low || mean >= high || input >= mean || x.SumI2 < input*x.SumI*(1-1e-9) {
				t.Fatalf("%s: bucket [%v, %v) has the batch %+v", profile, low, high, x)
			}
		}
		reads := 0.0
		for _, x := range w.Flow.Reads {
			reads += x
		}
		one := testkit.Must(partition.Flow.Price(w, nil, []int{8})).Iterations[0]
		if want := reads * one; math.Abs(sum.SumL-want) > 1e-4*want { // the counters forget a little
			t.Errorf("%s: %v tokens in flight, by Little's law %v", profile, sum.SumL, want)
		}

		got := testkit.Must(partition.TwoPhase{Objective: partition.Snapshot}.Partition(w))
		best := testkit.Must(partition.Exact{Objective: partition.Snapshot}.Partition(w))
		t.Logf("%s: %v at %v gain %.1f %%, the best %.1f %%", profile, got.Counts, got.Cuts, 100*(1-got.Cost/got.OneStage), 100*(1-best.Cost/best.OneStage))
		if len(got.Counts) < 3 || got.Cost > 0.98*got.OneStage {
			t.Errorf("%s: %d stages, cost %.4g, one stage %.4g", profile, len(got.Counts), got.Cost, got.OneStage)
		}
		if got.Cost < 0.7*got.OneStage {
			t.Errorf("%s: a gain of %.0f %% at this load: every token pays a whole prefill?", profile, 100*(1-got.Cost/got.OneStage))
		}
	}
}

// TestPrefillNotes checks what a plan says of prefill replicas, for each outcome of their prices.
func TestPrefillNotes(t *testing.T) {
	option := func(k int, cost float64) planner.PrefillOption {
		return planner.PrefillOption{Prefill: k, Stages: 1, Decode: cost - 1, Wait: 0.75, Move: 0.25, Utilisation: 0.5, Cost: cost}
	}
	inf := math.Inf(1)
	for _, c := range []struct {
		name string
		q    planner.PrefillQuote
		want []string
	}{
		{"short prompts", planner.PrefillQuote{Options: []planner.PrefillOption{option(0, 8), option(1, 9)}}, []string{
			"Prefill replicas do not pay: no bucket of prompts has 1024 uncached tokens on average."}},
		{"they pay", planner.PrefillQuote{Moved: 3, Best: 1, Options: []planner.PrefillOption{option(0, 8), option(1, 6), option(2, 7)}}, []string{
			"Without prefill replicas: 8 requests in the system: 7 generate, 0.75 wait for their first token, 0.25 move.",
			"With 1 of 3, 50 % busy, for 3.00 requests/s: 6 requests in the system: 5 generate, 0.75 wait for their first token, 0.25 move.",
			"Prefill replicas: 1 of 3 would save 25 %."}},
		{"too little", planner.PrefillQuote{Moved: 3, Best: 2, Options: []planner.PrefillOption{option(0, 8), option(1, inf), option(2, 7.5)}}, []string{
			"Without prefill replicas: 8 requests in the system: 7 generate, 0.75 wait for their first token, 0.25 move.",
			"With 2 of 3, 50 % busy, for 3.00 requests/s: 7.5 requests in the system: 6.5 generate, 0.75 wait for their first token, 0.25 move.",
			"Prefill replicas do not pay: 2 of 3 would save 6.2 %, and less than 10 % is within the model's error."}},
		{"nothing", planner.PrefillQuote{Moved: 3, Options: []planner.PrefillOption{option(0, 8), option(1, 10), option(2, 9)}}, []string{
			"Without prefill replicas: 8 requests in the system: 7 generate, 0.75 wait for their first token, 0.25 move.",
			"With 2 of 3, 50 % busy, for 3.00 requests/s: 9 requests in the system: 8 generate, 0.75 wait for their first token, 0.25 move.",
			"Prefill replicas do not pay: none is cheaper."}},
		{"only without", planner.PrefillQuote{Moved: 3, Options: []planner.PrefillOption{option(0, 8), option(1, inf)}}, []string{
			"Without prefill replicas: 8 requests in the system: 7 generate, 0.75 wait for their first token, 0.25 move.",
			"Prefill replicas do not pay: the other replicas could not carry this load."}},
		{"only with", planner.PrefillQuote{Moved: 3, Best: 1, Options: []planner.PrefillOption{option(0, inf), option(1, 9)}}, []string{
			"Without prefill replicas: cannot carry this load.",
			"With 1 of 2, 50 % busy, for 3.00 requests/s: 9 requests in the system: 8 generate, 0.75 wait for their first token, 0.25 move.",
			"Prefill replicas: 1 of 2 would save 100 %."}},
	} {
		r := describeQuote(c.q)
		if got := r.notes(len(c.q.Options)); !slices.Equal(got, c.want) {
			t.Errorf("%s:\n%q, want\n%q", c.name, got, c.want)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Errorf("%s: --json: %v", c.name, err)
		}
	}
}

// TestIterationRatio checks that no stage's iteration exceeds the ratio to that of one stage.
func TestIterationRatio(t *testing.T) {
	mix, _ := trace.Named("mixed")
	mix.Requests, mix.Seed, mix.Rate = 5000, 1, 20
	requests := testkit.Must(mix.Generate())
	longest := func(ratio float64) (seconds float64) {
		c := Config{
			Profile: testkit.Must(config.LoadProfile("rtxpro6000-llama-3.1-8b", ".")), Replicas: 8, Context: 131072,
			Policy: planner.PolicyDefault, IterationRatio: ratio, Limits: policies.Limits{Stages: policies.MaxStages},
		}
		for _, st := range testkit.Must(New(c, requests, "test")).Stages {
			seconds = max(seconds, st.Iteration)
		}
		w := testkit.Must(c.Workload(requests))
		return seconds / testkit.Must(partition.Flow.Price(w, nil, []int{8})).Iterations[0]
	}
	free := longest(0)
	bound := 1 + (free-1)/2
	if got := longest(bound); free <= 1 || got > bound {
		t.Errorf("bound %v: %v, without a bound %v", bound, got, free)
	}
}
