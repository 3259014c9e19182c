package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// TestRescue loses the replica to which a request has moved: its front end resumes it, with all tokens,
// after it has computed the KV again.
func TestRescue(t *testing.T) {
	var records []replay.Record
	s := newFleet(t, &requests{{Input: 500, Output: 2000}}, &records, 1000)
	s.cfg.Faults = []Fault{{Kind: Fail, Replica: 1, At: 15 * time.Second}}
	testkit.Must(s.Run(t.Context()))
	r, m := records[0], s.cascade.moves()
	if len(records) != 1 || r.Error != "" || r.Tokens != 2000 || m.Rescued != 1 || m.Moved != 1 {
		t.Fatalf("%+v, %+v", records, m)
	}
	here, there := s.replicas[0].scheduler.Stats(), s.replicas[1].lost[0].GenerationTokens
	// The iteration that the failure broke off computed a token that has reached no one.
	if here.GenerationTokens+there != 2001 || there < 300 {
		t.Errorf("%d and %d tokens were generated, want 2001", here.GenerationTokens, there)
	}
	// It moved at about 1,024 tokens, and had grown by those of the other replica.
	if again := here.PromptTokens - 500; again < 1024+there-30 || again > 1024+there+30 {
		t.Errorf("%d tokens were computed again, want about %d", again, 1024+there)
	}
	if seen := s.cascade.fronts[0].counter.Rates(s.now.Seconds()).Seen; seen != 1 {
		t.Errorf("%d requests arrived, want 1", seen)
	}
}

// TestFrontEndFails loses the front end of a request that runs elsewhere: its client sees a cut, and the
// other engine stops.
func TestFrontEndFails(t *testing.T) {
	var records []replay.Record
	s := newFleet(t, &requests{{Input: 500, Output: 2000}, {At: 15500 * time.Millisecond, Input: 100, Output: 5}}, &records, 1000)
	s.cfg.Faults = []Fault{{Kind: Fail, Replica: 0, At: 15 * time.Second}}
	testkit.Must(s.Run(t.Context()))
	if len(records) != 2 || records[0].Error != replay.Cut || records[0].E2E != 15 || records[0].Tokens < 1000 {
		t.Fatalf("%+v", records)
	}
	// The second one comes before the failure is noticed; the proxy tries the longer stage.
	if records[1].Error != "" || records[1].Tokens != 5 {
		t.Errorf("%+v", records[1])
	}
	if x := s.replicas[1].scheduler.Stats(); x.Running+x.Frozen+x.UsedBlocks != 0 {
		t.Errorf("the other engine goes on: %+v", x)
	}
}

// TestDrainMovesRequests drains a replica: its requests leave by the market and none come, until it is
// back.
func TestDrainMovesRequests(t *testing.T) {
	var source requests
	for i := range 60 {
		source = append(source, trace.Request{At: time.Duration(i) * time.Second / 2, Input: 200, Output: 600}) // 6 s each
	}
	held := map[int]int{} // requests at replica 1, by second
	second := 0
	var records []replay.Record
	c := Config{Replicas: 3, Profile: profile, Policy: Cascade, Source: &source, Record: func(r *replay.Record) { records = append(records, *r) },
		Faults:          []Fault{{Kind: Drain, Replica: 1, At: 10200 * time.Millisecond, Until: 20200 * time.Millisecond}},
		InspectInterval: time.Second, Inspect: func(int, []policies.Tokens) {},
	}
	c.Profile.LinkRate = 1e6 * float64(profile.KVBytesPerToken)
	s := testkit.Must(New(c))
	s.cfg.Inspect = func(replica int, lengths []policies.Tokens) {
		second = int(s.now / time.Second)
		if replica == 1 {
			held[second] = len(lengths)
		}
	}
	testkit.Must(s.Run(t.Context()))
	for _, r := range records {
		if r.Error != "" || r.Tokens != 600 {
			t.Errorf("%+v", r)
		}
	}
	if m := s.cascade.moves(); m.Drain == 0 || m.Drain != m.Moved-m.Outlier || held[10] == 0 || held[13]+held[15]+held[19] != 0 || held[24] == 0 {
		t.Errorf("%+v; requests by second: %v", m, held)
	}
}

// TestPlansFollowFailures loses the only replica of a stage: another one takes its place, and the stages
// that were configured are back when it is.
func TestPlansFollowFailures(t *testing.T) {
	stages := policies.Partition{Cuts: []policies.Tokens{300}, Counts: []int{3, 1}}
	result, records := run(t, Config{
		Replicas: 4, Policy: Cascade, Stages: stages, Faults: []Fault{{Kind: Fail, Replica: 3, At: 10 * time.Second, Until: 20 * time.Second}},
	}, mix(1200, 20, 1))
	var counts [][]int
	for _, p := range result.Plans {
		counts = append(counts, p.Counts)
	}
	if len(counts) < 3 || !slices.Equal(counts[1], []int{3, 1}) || !slices.Equal(counts[2], []int{2, 2}) {
		t.Errorf("plans with %v replicas", counts)
	}
	cut := 0
	for _, r := range records {
		switch {
		case r.Error == replay.Cut && r.Due < 10:
			cut++
		case r.Error != "":
			t.Errorf("%+v", r)
		}
	}
	if cut == 0 || cut > 60 {
		t.Errorf("%d requests were cut", cut)
	}
}

// TestCascadeInFaults drives Cascade's policies through failures and drains of all replicas: every
// request has one end, those that are answered have all their tokens, and nothing is left behind.
func TestCascadeInFaults(t *testing.T) {
	var rescued, drained uint64
	for _, policy := range []string{Cascade, Paper, WithoutMoves} {
		for seed := range uint64(4) {
			g, _ := trace.Named("chat")
			g.Requests, g.Rate, g.Seed = 900, 60, seed
			source := requests(testkit.Must(g.Generate()))
			all := slices.Clone(source)
			var records []replay.Record
			c := Config{
				Replicas: 5, Policy: policy, Profile: testkit.Must(cost.Builtin("h200-llama-3.1-8b")), KVTokens: 30_000, Seed: seed, Source: &source, Admission: seed%2 == 1, HealthDelay: 500 * time.Millisecond,
				Record: func(r *replay.Record) { records = append(records, *r) },
			}
			for i := range 5 {
				at := time.Duration(2000+2500*i) * time.Millisecond
				c.Faults = append(c.Faults, Fault{Kind: Fail, Replica: i, At: at, Until: at + 1500*time.Millisecond}, Fault{Kind: Drain, Replica: (i + 2) % 5, At: at + time.Second, Until: at + 2*time.Second})
			}
			s := testkit.Must(New(c))
			testkit.Must(s.Run(t.Context()))
			what := fmt.Sprintf("%s, seed %d", policy, seed)
			checkEnds(t, what, all, records, replay.Cut, TooLong, Refused)
			checkIdle(t, what, s)
			for _, f := range s.cascade.fronts {
				if w := f.ledger.Work(); w.Requests != 0 || w.Demand != 0 || w.Waiting != 0 {
					t.Errorf("%s: %s believes to have %+v", what, f.id, w)
				}
			}
			m := s.cascade.moves()
			rescued, drained = rescued+m.Rescued, drained+m.Drain
		}
	}
	if rescued == 0 || drained == 0 {
		t.Errorf("%d rescued, %d left by a drain: the test sees too little", rescued, drained)
	}
}

// TestMeanOfTheStage checks that front ends know the mean of their stage from the control plane, before
// their peers have sent anything.
func TestMeanOfTheStage(t *testing.T) {
	var records []replay.Record
	s := newFleet(t, &requests{}, &records, 1000)
	s.replicas[0].add(&request{Request: trace.Request{Input: 500, Output: 10}, tokens: 5})
	c := s.cascade
	c.view.ticks = ticksPerReport - 1
	testkit.NoError(t, c.tick())
	for i, want := range []policies.Tokens{505, 0} {
		if m := c.measure(c.fronts[i]); m.Mean != want || !m.MeanKnown {
			t.Errorf("stage %d: mean %d, known %v; want %d", i, m.Mean, m.MeanKnown, want)
		}
	}
}
