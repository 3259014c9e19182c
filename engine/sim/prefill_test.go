package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// TestPrefillRole checks what a prefill replica of a fleet of Cascade gets: long prompts that the front
// end's own engine has not cached, which leave with their first tokens.
func TestPrefillRole(t *testing.T) {
	prefix := []uint64{1, 2, 3, 4}
	for _, c := range []struct {
		why    string
		source requests // 20 s apart, to the one front end
		first  []uint64 // prompts computed by the prefill replica, in tokens, one after the other
	}{
		{"a long prompt", requests{{Input: 2000, Output: 300}}, []uint64{2000}},
		{"a short one", requests{{Input: 1000, Output: 300}}, []uint64{0}},
		{"a long one of which the own engine has enough", requests{{Input: 2048, Output: 300, Prefix: prefix}, {Input: 3000, Output: 300, Prefix: prefix}}, []uint64{2048, 2048}},
		{"too little of it", requests{{Input: 2048, Output: 300, Prefix: prefix}, {Input: 4000, Output: 300, Prefix: prefix}}, []uint64{2048, 6048}},
	} {
		var records []replay.Record
		for i := range c.source {
			c.source[i].At = time.Duration(3+20*i) * time.Second // summaries have come
		}
		s := testkit.Must(New(Config{Replicas: 2, PrefillReplicas: 1, Profile: profile, Policy: OneStage, Source: &c.source, Record: func(r *replay.Record) { records = append(records, *r) }}))
		testkit.Must(s.Run(t.Context()))
		a, b, m := s.replicas[0].scheduler.Stats(), s.replicas[1].scheduler.Stats(), s.cascade.moves()
		want, moves := c.first[len(c.first)-1], uint64(0)
		for i, x := range c.first {
			if i == 0 && x > 0 || i > 0 && x > c.first[i-1] {
				moves++
			}
		}
		if a.PromptTokens != want || m.Prefill != moves || m.Moved != moves || m.Placed != moves {
			t.Errorf("%s: the prefill replica computed prompts of %d tokens, want %d; %+v", c.why, a.PromptTokens, want, m)
		}
		// It is found by the next scan, and copied in a round or two.
		if a.GenerationTokens > 10*moves || a.GenerationTokens+b.GenerationTokens != uint64(300*len(records)) {
			t.Errorf("%s: %d tokens were generated there, %d elsewhere", c.why, a.GenerationTokens, b.GenerationTokens)
		}
		for _, r := range records {
			if r.Error != "" || r.Tokens != 300 {
				t.Errorf("%s: %+v", c.why, r)
			}
		}
		for _, p := range s.plans {
			if len(p.Counts) != 1 || p.Counts[0] != 1 {
				t.Errorf("%s: a prefill replica is in a stage: %+v", c.why, p)
			}
		}
	}
}

// TestPrefillRanges checks that prefill replicas are divided among the prompts by what the control plane counts of
// them: most short prompts are computed by one, and most long ones by the other.
func TestPrefillRanges(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	var source requests
	for at := 0.0; at < 120; {
		at += rng.ExpFloat64() / 20.5
		r := trace.Request{At: time.Duration(at * 1e9), Input: 1500, Output: 20}
		if rng.Float64() < 0.5/20.5 {
			r.Input = 50_000
		}
		source = append(source, r)
	}
	s := testkit.Must(New(Config{Replicas: 5, PrefillReplicas: 2, Profile: profile, KVTokens: 1_000_000, Policy: OneStage, Source: &source}))
	testkit.Must(s.Run(t.Context()))
	ranges := s.cascade.plans.PrefillRanges()
	if len(ranges) != 2 || ranges[0].High <= 1500 || ranges[0].High > 50_000 || ranges[1].Low != ranges[0].High {
		t.Fatalf("ranges %+v", ranges)
	}
	// Rates of arrivals by length, of the last minute or so.
	var flows [2]policies.Flow
	for i := range flows {
		flows[i] = s.cascade.fronts[i].counter.Rates(s.now.Seconds())
	}
	for _, c := range []struct {
		length policies.Tokens
		at     int
		least  float64
	}{{1500, 0, 0.7}, {50_000, 1, 0.7}} {
		b := policies.BucketOf(flows[0].Edges, c.length)
		if share := flows[c.at].Arrivals[b] / (flows[0].Arrivals[b] + flows[1].Arrivals[b]); !(share >= c.least) {
			t.Errorf("prompts of %d tokens: %.2f of them at replica %d, want %v", c.length, share, c.at, c.least)
		}
	}
}

// TestPrefillRoleInFaults loses prefill replicas and others, and drains them.
func TestPrefillRoleInFaults(t *testing.T) {
	for seed := range uint64(3) {
		c := Config{
			Replicas: 5, PrefillReplicas: 2, Policy: Cascade, KVTokens: 30_000, Seed: seed, HealthDelay: 500 * time.Millisecond,
			Stages: policies.Partition{Cuts: []policies.Tokens{1500}, Counts: []int{2, 1}},
		}
		for i := range 5 {
			at := time.Duration(3000+3000*i) * time.Millisecond
			c.Faults = append(c.Faults, Fault{Kind: Fail, Replica: i, At: at, Until: at + 2*time.Second}, Fault{Kind: Drain, Replica: (i + 2) % 5, At: at + time.Second, Until: at + 2*time.Second})
		}
		source := requests(testkit.Must(trace.Collect(mix(400, 20, seed))))
		for i, r := range source {
			source[i] = trace.Request{At: r.At, Input: 4 * r.Input, Output: r.Output}
		}
		all := slices.Clone(source)
		result, records := run(t, c, &source)
		checkEnds(t, fmt.Sprint("seed ", seed), all, records, replay.Cut)
		if result.Moves.Prefill == 0 {
			t.Errorf("seed %d: %+v", seed, result.Moves)
		}
	}
}
