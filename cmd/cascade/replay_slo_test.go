package main

import (
	"testing"
	"time"

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

// TestArrivalTime checks that the last arrival is in wall time.
func TestArrivalTime(t *testing.T) {
	if d := arrivalTime([]trace.Request{{}, {At: time.Minute}}, 0.5); d != 2*time.Minute {
		t.Errorf("the last arrival is after %v", d)
	}
}
