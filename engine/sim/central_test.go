package sim

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// runCentral simulates replicas with a link of 1,000,000 tokens/s and 20 ms a migration.
func runCentral(t *testing.T, c Config, source requests) (*Sim, []replay.Record) {
	t.Helper()
	var records []replay.Record
	c.Profile, c.Source, c.Record = profile, &source, func(r *replay.Record) { records = append(records, *r) }
	c.Profile.LinkRate, c.Profile.TransferBase = 1e6*float64(profile.KVBytesPerToken), 0.02
	s := testkit.Must(New(c))
	testkit.Must(s.Run(t.Context()))
	for _, r := range s.replicas {
		if x := r.scheduler.Stats(); x.UsedBlocks != 0 || x.Reserved != 0 || x.Running+x.Waiting+x.Frozen != 0 || len(r.resident)+len(r.transfers)+r.sending+r.receiving != 0 {
			t.Errorf("replica %d: %+v, %d residents, %d transfers", r.index, x, len(r.resident), len(r.transfers))
		}
	}
	for i, p := range s.proxies[0].replicas {
		if p.Requests != 0 {
			t.Errorf("the proxy believes that %d requests are at replica %d", p.Requests, i)
		}
	}
	return s, records
}

// TestPrefillDecode follows one request: its prompt and first token at one replica, one copy of its KV
// during which it stands still, and the rest at the other.
func TestPrefillDecode(t *testing.T) {
	s, records := runCentral(t, Config{Replicas: 2, Policy: prefillDecode}, requests{{Input: 1000, Output: 100}})
	r, m, p := records[0], s.central.moves(), s.cfg.Profile
	a, b := s.replicas[0].scheduler.Stats().GenerationTokens, s.replicas[1].scheduler.Stats().GenerationTokens
	if len(records) != 1 || a != 1 || b != 99 || m.Moved != 1 || m.Prefill != 1 || m.Failed != 0 || m.Tokens != 1001 {
		t.Fatalf("%d + %d tokens, %+v, %+v", a, b, r, m)
	}
	if want := p.D0 + p.D2*1000 + p.D3*1e6; !near(r.TTFT, want, 1e-6) {
		t.Errorf("first token after %v s, want %v s", r.TTFT, want)
	}
	rest := 0.02 + 0.001001 // 1,001 tokens over the link
	if !near(m.StallSeconds, rest, 1e-6) {
		t.Errorf("it stood still for %v s, want %v s", m.StallSeconds, rest)
	}
	for length := 1001; length < 1100; length++ {
		rest += p.D0 + p.D1 + p.D4*float64(length)
	}
	if got := r.Last - r.TTFT; math.Abs(got-rest) > 1e-6 {
		t.Errorf("the rest took %v s, want %v s", got, rest)
	}
}

// TestPrefillDecodeWaits checks that requests wait frozen for KV of the replica that generates, in the
// order in which they came, and that it has only as many as fit.
func TestPrefillDecodeWaits(t *testing.T) {
	source := requests{}
	for range 4 {
		source = append(source, trace.Request{Input: 400, Output: 100})
	}
	_, records := runCentral(t, Config{Replicas: 2, Policy: prefillDecode, KVTokens: 1024}, source)
	for i, r := range records {
		if r.Error != "" || r.Tokens != 100 || r.Index != i {
			t.Fatalf("%+v", records)
		}
	}
	// Two of 500 tokens fit: the third one goes on when the first has ended.
	if records[2].Last-records[2].TTFT < 2*(records[0].Last-records[0].TTFT)-0.1 {
		t.Errorf("the third request did not wait: %+v", records)
	}
}

// TestLlumnixMoves fills one replica while the other is idle again: requests leave before the memory
// ends, without a preemption.
func TestLlumnixMoves(t *testing.T) {
	source := requests{{Input: 10, Output: 400}}
	for i := range 6 { // by the loads of the last poll both fill up, then the first half ends
		source = append(source, trace.Request{At: time.Duration(1+i) * 60 * time.Millisecond, Input: 200, Output: policies.Tokens(900 - 860*(i%2))})
	}
	s, records := runCentral(t, Config{Replicas: 2, Policy: "llumnix", KVTokens: 2400}, source)
	still, _ := runCentral(t, Config{Replicas: 2, Policy: "least-load", KVTokens: 2400}, source)
	m := s.central.moves()
	for _, r := range records {
		if r.Error != "" || r.Tokens != int64(source[r.Index].Output) {
			t.Errorf("%+v", r)
		}
	}
	preempted := func(s *Sim) uint64 {
		return s.replicas[0].scheduler.Stats().Preemptions + s.replicas[1].scheduler.Stats().Preemptions
	}
	if m.Moved == 0 || m.Outlier != m.Moved || preempted(s) > preempted(still) {
		t.Errorf("%+v, %d preemptions, %d without moves", m, preempted(s), preempted(still))
	}
}

// TestMovesInFaults drives both kinds of routers through failures, drains and shortage: every request
// has an end, every token is counted once, and nothing is left behind.
func TestMovesInFaults(t *testing.T) {
	for _, policy := range []string{"llumnix", "llumnix-balanced", prefillDecode} {
		var moved, failed uint64
		for seed := range uint64(12) {
			source := requests(testkit.Must(trace.Collect(mix(400, 120, seed))))
			c := Config{Replicas: 5, Policy: policy, KVTokens: 3000, Seed: seed, HealthDelay: 300 * time.Millisecond}
			for i := range 5 { // each once, one of them for ever
				at := time.Duration(500+700*i) * time.Millisecond
				c.Faults = append(c.Faults, Fault{Kind: Fail, Replica: i, At: at, Until: at + 400*time.Millisecond})
			}
			c.Faults = append(c.Faults, Fault{Kind: Drain, Replica: 1, At: 2 * time.Second, Until: 3 * time.Second}, Fault{Kind: Fail, Replica: 4, At: 5 * time.Second})
			s, records := runCentral(t, c, source)
			checkEnds(t, fmt.Sprintf("%s, seed %d", policy, seed), source, records, replay.Cut, replay.Connect, TooLong)
			m := s.central.moves()
			moved, failed = moved+m.Moved, failed+m.Failed
		}
		if moved == 0 || failed == 0 {
			t.Errorf("%s: %d moved, %d failed: the test sees too little", policy, moved, failed)
		}
	}
}
