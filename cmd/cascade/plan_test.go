package main

import (
	"encoding/json"
	"math"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/prefillpool"
	"github.com/cascadeinfer/cascade/policies/testkit"
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
		p := planFlags{profile: profile, replicas: 8, context: 131072, tp: 1, stages: policies.MaxStages}
		w := testkit.Must(p.workload(requests))
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

// TestPrefillByThePolicy checks that prefill replicas are priced beside the stages that the policy makes: no
// prefill replicas cost what the plan costs, and have its stages.
func TestPrefillByThePolicy(t *testing.T) {
	counts := map[string]int{}
	for _, policy := range []string{"default", "least-cost"} {
		var got planResult
		out := runCommand(t, "plan", "--mix", "mixed", "--rate", "20", "--replicas", "8", "--profile", "rtxpro6000-llama-3.1-8b", "--pooling", "0.3", "--policy", policy, "--json")
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatal(err)
		}
		counts[policy] = len(got.Stages)
		if none := got.Prefill.Options[0]; none.Stages != len(got.Stages) || none.Decode != got.Cost {
			t.Errorf("%s: without prefill replicas %d stages that cost %v, and the plan has %d that cost %v", policy, none.Stages, none.Decode, len(got.Stages), got.Cost)
		}
	}
	if counts["default"] >= counts["least-cost"] {
		t.Errorf("%v stages: the policies do not differ, and the test shows nothing", counts)
	}
}

// TestPrefillNotes checks what "cascade plan" says of prefill replicas, for each outcome of their prices.
func TestPrefillNotes(t *testing.T) {
	option := func(k int, cost float64) prefillpool.Option {
		return prefillpool.Option{Prefill: k, Stages: 1, Decode: cost - 1, Wait: 0.75, Move: 0.25, Utilisation: 0.5, Cost: cost}
	}
	inf := math.Inf(1)
	for _, c := range []struct {
		name string
		q    prefillpool.Quote
		want []string
	}{
		{"short prompts", prefillpool.Quote{Options: []prefillpool.Option{option(0, 8), option(1, 9)}}, []string{
			"Prefill replicas do not pay: no bucket of prompts has 1024 uncached tokens on average."}},
		{"they pay", prefillpool.Quote{Moved: 3, Best: 1, Options: []prefillpool.Option{option(0, 8), option(1, 6), option(2, 7)}}, []string{
			"Without prefill replicas: 8 requests in the system: 7 generate, 0.75 wait for their first token, 0.25 move.",
			"With 1 of 3, 50 % busy, for 3.00 requests/s: 6 requests in the system: 5 generate, 0.75 wait for their first token, 0.25 move.",
			"Prefill replicas: 1 of 3 would save 25 %."}},
		{"too little", prefillpool.Quote{Moved: 3, Best: 2, Options: []prefillpool.Option{option(0, 8), option(1, inf), option(2, 7.5)}}, []string{
			"Without prefill replicas: 8 requests in the system: 7 generate, 0.75 wait for their first token, 0.25 move.",
			"With 2 of 3, 50 % busy, for 3.00 requests/s: 7.5 requests in the system: 6.5 generate, 0.75 wait for their first token, 0.25 move.",
			"Prefill replicas do not pay: 2 of 3 would save 6.2 %, and less than 10 % is within the model's error."}},
		{"nothing", prefillpool.Quote{Moved: 3, Options: []prefillpool.Option{option(0, 8), option(1, 10), option(2, 9)}}, []string{
			"Without prefill replicas: 8 requests in the system: 7 generate, 0.75 wait for their first token, 0.25 move.",
			"With 2 of 3, 50 % busy, for 3.00 requests/s: 9 requests in the system: 8 generate, 0.75 wait for their first token, 0.25 move.",
			"Prefill replicas do not pay: none is cheaper."}},
		{"only without", prefillpool.Quote{Moved: 3, Options: []prefillpool.Option{option(0, 8), option(1, inf)}}, []string{
			"Without prefill replicas: 8 requests in the system: 7 generate, 0.75 wait for their first token, 0.25 move.",
			"Prefill replicas do not pay: the other replicas could not carry this load."}},
		{"only with", prefillpool.Quote{Moved: 3, Best: 1, Options: []prefillpool.Option{option(0, inf), option(1, 9)}}, []string{
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
