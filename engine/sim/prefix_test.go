package sim

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// turns draws conversations: each turn's prompt extends that of the turn before, seconds earlier, and all
// begin with the same two blocks.
func turns(conversations, each int, seed uint64) *requests {
	rng := rand.New(rand.NewPCG(seed, 1))
	var out requests
	id := uint64(100)
	for c := range conversations {
		prefix, length := []uint64{1, 2}, policies.Tokens(2*trace.BlockTokens)
		at := time.Duration(c) * 300 * time.Millisecond
		for range each {
			for range 2 + rng.IntN(6) {
				id++
				prefix = append(prefix, id)
				length += trace.BlockTokens
			}
			out = append(out, trace.Request{At: at, Input: length, Output: 20 + policies.Tokens(rng.IntN(50)), Prefix: slices.Clone(prefix)})
			at += 4*time.Second + time.Duration(rng.Int64N(int64(4*time.Second)))
		}
	}
	slices.SortStableFunc(out, func(a, b trace.Request) int { return int(a.At - b.At) })
	return &out
}

// TestConversationsKeepTheirCache compares Cascade with less of it on conversations: placement finds what
// is cached, pulls find more, and equal seeds give equal results.
func TestConversationsKeepTheirCache(t *testing.T) {
	p := profile
	p.KVTokens, p.LinkRate = 1_000_000, 1e6*float64(p.KVBytesPerToken)
	hits := func(policy string) (float64, *Moves) {
		c := Config{Replicas: 6, Policy: policy, Profile: p, Seed: 3}
		c.Stages = policies.Partition{Cuts: []policies.Tokens{8192}, Counts: []int{4, 2}}
		r, records := run(t, c, turns(120, 5, 1))
		if len(records) != 600 || len(r.Failures) > 0 {
			t.Fatalf("%s: %d requests, failures %+v", policy, len(records), r.Failures)
		}
		return r.Reuse.OfIdeal, r.Moves
	}
	none, _ := hits(WithoutAffinity)
	kept, moves := hits(WithoutPull)
	all, pulls := hits(Cascade)
	again, _ := hits(Cascade)
	if none > 0.7 || kept < none+0.2 || all < kept || all < 0.9 || again != all {
		t.Errorf("of the ideal: %.3f without affinity, %.3f with it, %.3f with pulls, %.3f once more", none, kept, all, again)
	}
	if moves.Pulls != 0 || moves.PulledTokens != 0 || pulls.Pulls == 0 || pulls.PulledTokens < policies.Tokens(pulls.Pulls)*trace.BlockTokens/2 {
		t.Errorf("pulls: %+v without, %+v with", moves, pulls)
	}
}

// TestWithoutTokenizer checks that front ends that know the tokens of no prompts but those that they have served find
// the cache of a conversation more often than if they know nothing, and less often than if they know all tokens.
func TestWithoutTokenizer(t *testing.T) {
	p := profile
	p.KVTokens, p.D2 = 1_000_000, 10*p.D2 // what is cached is worth more than the margin of placement
	hits := func(policy string) float64 {
		r, records := run(t, Config{Replicas: 6, Policy: policy, Profile: p, Seed: 3}, turns(120, 5, 1))
		if len(records) != 600 || len(r.Failures) > 0 {
			t.Fatalf("%s: %d requests, failures %+v", policy, len(records), r.Failures)
		}
		return r.Reuse.OfIdeal
	}
	served, all, nothing := hits(WithoutTokenizer), hits(Cascade), hits(WithoutAffinity)
	t.Logf("of the ideal: %.3f by what they have served, %.3f if front ends know all tokens, %.3f if they know nothing", served, all, nothing)
	if served < nothing || all < served+0.1 {
		t.Errorf("of the ideal: %.3f by what they have served, %.3f if front ends know all tokens, %.3f if they know nothing", served, all, nothing)
	}
}

// TestTextsAreBounded checks that a front end forgets the texts that it has not served for longest.
func TestTextsAreBounded(t *testing.T) {
	var x texts
	for id := range uint64(1000) {
		if x.learn([]uint64{1, 2, 100 + id}, 10); len(x.recent)+len(x.older) > 24 {
			t.Fatalf("%d and %d blocks", len(x.recent), len(x.older))
		}
		for back := range min(id, 7) {
			if !x.knows(100 + id - back) {
				t.Fatalf("block %d is forgotten at %d", 100+id-back, 100+id)
			}
		}
	}
	if !x.knows(1) || x.knows(100) {
		t.Error("what is used is forgotten, or what is not is known")
	}
}

// TestHotPrefix sends half of the requests with one long prefix: no replica gets much more than its share,
// and none fails.
func TestHotPrefix(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	hot := []uint64{1, 2, 3, 4, 5, 6, 7, 8}
	var all requests
	at := 0.0
	for i := range 4000 {
		at += rng.ExpFloat64() / 60
		r := trace.Request{At: time.Duration(at * 1e9), Input: 4200, Output: 100, Prefix: hot}
		if i%2 == 0 {
			r.Prefix = []uint64{uint64(i)*10 + 100, uint64(i)*10 + 101, uint64(i)*10 + 102, uint64(i)*10 + 103}
		}
		all = append(all, r)
	}
	r, _ := run(t, Config{Replicas: 8, Policy: OneStage}, &all)
	most := slices.Max(r.Engines.Generated)
	if share := float64(most) * 8 / float64(r.Engines.GenerationTokens); len(r.Failures) > 0 || share > 1.5 {
		t.Errorf("the busiest replica has %.2f times its share, failures %+v", share, r.Failures)
	}
	if hit := r.Reuse.OfIdeal; hit < 0.9 {
		t.Errorf("%.3f of the ideal", hit)
	}
}

// TestStepsOf checks the steps of prompts: full blocks are compared, and what follows is a prompt's own.
func TestStepsOf(t *testing.T) {
	s := testkit.Must(New(Config{Replicas: 2, Profile: profile, Policy: Cascade, Source: &requests{}}))
	ids := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for _, c := range []struct {
		input policies.Tokens
		ids   []uint64
		steps int
	}{{5000, nil, 0}, {511, []uint64{7}, 0}, {512, []uint64{7}, 1}, {1023, []uint64{7, 8}, 1}, {1024, []uint64{7, 8}, 2}, {1200, []uint64{7}, 1}, {5000, ids, 9}, {4607, ids, 8}} {
		steps := s.cascade.stepsOf(&request{index: 3, Request: trace.Request{Input: c.input, Prefix: c.ids}})
		if len(steps) != c.steps || c.steps > 0 && steps[c.steps-1].Tokens != policies.Tokens(c.steps)*512 {
			t.Errorf("%v of %v tokens: %d steps, want %d", c.ids, c.input, len(steps), c.steps)
		}
	}
}

// TestSummariesAreOld checks that a summary says what a cache had when it was sent, and for as long as it
// counts.
func TestSummariesAreOld(t *testing.T) {
	p := profile
	p.KVTokens = 8192 // sixteen blocks of a trace
	s := testkit.Must(New(Config{Replicas: 2, Profile: p, Policy: Cascade, Source: &requests{}}))
	r := s.replicas[0]
	compute := func(at time.Duration, ids ...uint64) {
		s.now = at
		q := &request{Request: trace.Request{Input: policies.Tokens(len(ids)) * 512, Output: 1, Prefix: ids}}
		r.submit(q)
		for r.begin() > 0 {
			r.remove(q)
		}
	}
	a, b := []uint64{1, 2, 3, 4, 5, 6, 7, 8}, []uint64{11, 12, 13, 14, 15, 16, 17, 18, 19, 20}
	want := func(at time.Duration, ids []uint64, held policies.Tokens) {
		t.Helper()
		steps := s.cascade.stepsOf(&request{Request: trace.Request{Input: policies.Tokens(len(ids)) * 512, Prefix: ids}})
		if got := (snapshot{r.holdings, at}).MatchSteps(steps); got != held {
			t.Errorf("a summary of %v names %v tokens, want %v", at, got, held)
		}
	}
	compute(time.Second, a...)
	want(time.Second-1, a, 0)
	want(time.Second, a, 4096)
	compute(2*time.Second, b...) // needs ten of the sixteen blocks: some of a's are evicted
	want(2*time.Second-1, a, 4096)
	want(2*time.Second-1, b, 0)
	want(2*time.Second, b, 5120)
	steps := s.cascade.stepsOf(&request{Request: trace.Request{Input: 4096, Prefix: a}})
	if now := (snapshot{r.holdings, s.now}).MatchSteps(steps); now == 0 || now >= 4096 || now > r.cachedTokens(trace.Request{Input: 4097, Prefix: a}) {
		t.Errorf("%v tokens are left", now)
	}
	r.holdings.forgetBefore(3 * time.Second)
	if len(r.holdings.removed) != 0 || len(r.holdings.blocks) > 16 {
		t.Errorf("%d removals and %d blocks are remembered", len(r.holdings.removed), len(r.holdings.blocks))
	}
}

// TestPullsFail loses replicas while prefixes are copied from and to them: every request ends, and no
// counter of transfers is left.
func TestPullsFail(t *testing.T) {
	p := profile
	p.D2, p.LinkRate = 1e-3, 4e3*float64(p.KVBytesPerToken) // pulls take seconds, to compute takes longer
	var faults []Fault
	for i := range 4 {
		at := 8*time.Second + time.Duration(i)*7*time.Second
		faults = append(faults, Fault{Kind: Fail, Replica: i, At: at, Until: at + 3*time.Second})
	}
	var source requests = *turns(40, 4, 2)
	s := testkit.Must(New(Config{Replicas: 4, Profile: p, Policy: OneStage, Faults: faults, Source: &source}))
	r, err := s.Run(t.Context())
	testkit.NoError(t, err)
	if r.Moves.Pulls < 5 || r.Completed == 0 {
		t.Errorf("%+v, %d completed", r.Moves, r.Completed)
	}
	for _, x := range s.replicas {
		if x.sending != 0 || x.receiving != 0 || x.scheduler.Stats().Reserved != 0 || len(x.resident) != 0 {
			t.Errorf("replica %d: %d sent, %d received, %d blocks reserved, %d requests", x.index, x.sending, x.receiving, x.scheduler.Stats().Reserved, len(x.resident))
		}
	}
}

// TestPullIsNeverSlower compares the first token of a request whose prefix another replica has, with pulls
// over links of any speed and without.
func TestPullIsNeverSlower(t *testing.T) {
	prefix := make([]uint64, 20)
	for i := range prefix {
		prefix[i] = uint64(i + 1)
	}
	first := func(policy string, rate float64) (float64, uint64) {
		p := profile
		p.LinkRate = rate * float64(p.KVBytesPerToken)
		// The first request leaves its prefix in the short stage; a long one is computed in the long stage.
		r, records := run(t, Config{Replicas: 2, Policy: policy, Profile: p, Stages: policies.Partition{Cuts: []policies.Tokens{11_000}, Counts: []int{1, 1}}}, &requests{
			{Input: 10_240, Output: 1, Prefix: prefix},
			{At: 10 * time.Second, Input: 12_000, Output: 1, Prefix: prefix},
		})
		return records[1].TTFT, r.Moves.Pulls
	}
	computed, _ := first(WithoutForwards, 0)
	pulled := uint64(0)
	for _, rate := range []float64{1e3, 1e4, 5e4, 1e5, 2e5, 1e6, 1e7} {
		took, pulls := first(WithoutForwards, rate)
		pulled += pulls
		if took > computed+1e-9 {
			t.Errorf("%v tokens/s: %v s, computed in %v s", rate, took, computed)
		}
		if (pulls == 1) != (took < computed) {
			t.Errorf("%v tokens/s: %d pulls, %v s", rate, pulls, took)
		}
	}
	if pulled < 2 {
		t.Errorf("%d pulls", pulled)
	}
}

// TestMigratedPrefixIsFound checks that a request that has moved leaves its prompt's KV where it ends: the
// next turn finds it there.
func TestMigratedPrefixIsFound(t *testing.T) {
	p := profile
	p.LinkRate, p.TransferBase = 1e6*float64(p.KVBytesPerToken), 0.02
	prefix := []uint64{1, 2, 3, 4, 5, 6, 7, 8}
	r, records := run(t, Config{Replicas: 2, Policy: WithoutPull, Profile: p, Stages: policies.Partition{Cuts: []policies.Tokens{5000}, Counts: []int{1, 1}}}, &requests{
		{Input: 4096, Output: 3000, Prefix: prefix},
		{At: 200 * time.Second, Input: 7500, Output: 1, Prefix: append(slices.Clone(prefix), 9, 10, 11, 12, 13, 14)},
	})
	if r.Moves.Growth != 1 || r.Engines.Generated[1] < 1900 {
		t.Fatalf("%+v, generated %v", r.Moves, r.Engines.Generated)
	}
	if got := records[1].Cached; got < 4096-16 || r.Moves.Placed != 0 {
		t.Errorf("the next turn, in the longer stage, finds %d tokens; %d requests were forwarded", got, r.Moves.Placed)
	}
}
