package ratelimitlog

import (
	"strconv"
	"testing"
	"time"
)

// TestGate: the first of each name passes, then one a minute, whatever comes between.
func TestGate(t *testing.T) {
	var g Gate
	start := time.Unix(1000, 0)
	for _, c := range []struct {
		name  string
		after time.Duration
		want  bool
	}{
		{"a", 0, true}, {"a", 0, false}, {"b", time.Second, true}, {"a", Quiet - 1, false}, {"a", Quiet, true},
		{"b", Quiet, false}, {"b", Quiet + time.Second, true}, {"a", 2*Quiet - 1, false}, {"", 2 * Quiet, true},
	} {
		if got := g.Pass(c.name, start.Add(c.after)); got != c.want {
			t.Errorf("%q after %v: %v", c.name, c.after, got)
		}
	}
}

// TestGateIsBounded: names that are invented are told up to a number, and forgotten.
func TestGateIsBounded(t *testing.T) {
	var g Gate
	now, told := time.Unix(1000, 0), 0
	for i := range 3 * Most {
		if g.Pass(strconv.Itoa(i), now) {
			told++
		}
	}
	if told != Most || g.Len() != Most {
		t.Errorf("%d told, %d kept", told, g.Len())
	}
	if !g.Pass("later", now.Add(Quiet)) || g.Len() != 1 {
		t.Errorf("%d kept after a minute", g.Len())
	}
}
