package main

import (
	"math"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/trace"
)

func TestParseSLO(t *testing.T) {
	for text, want := range map[string]replay.SLO{"": {}, "200ms,20ms": {TTFT: 0.2, TPOT: 0.02}} {
		if got, err := parseSLO(text); err != nil || got != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"200ms", "200,20", "0s,1s", "1s,-1s", "1s,1s,1s"} {
		if got, err := parseSLO(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestLatencyAlone checks the mean by hand, with prompts of one and of two iterations.
func TestLatencyAlone(t *testing.T) {
	p := cost.Profile{D0: 0.01, D1: 0.001, D2: 1e-5, D3: 1e-10, D4: 1e-7}
	got := latencyAlone(p, []trace.Request{{Input: 1000, Output: 200}, {Input: 10_000, Output: 100}})
	ttft := (0.01 + 0.01 + 1e-4 + 0.02 + 0.1 + 0.01) / 2
	tpot := (0.011 + 1e-7*1100 + 0.011 + 1e-7*10_050) / 2
	if math.Abs(got.TTFT-ttft) > 1e-9 || math.Abs(got.TPOT-tpot) > 1e-9 {
		t.Errorf("%+v, want %v and %v", got, ttft, tpot)
	}
	if d := arrivalTime([]trace.Request{{}, {At: time.Minute}}, 0.5); d != 2*time.Minute {
		t.Errorf("the last arrival is after %v", d)
	}
}
