package ratelimitlog

import (
	"strconv"
	"testing"
	"time"
)

// TestGate: the first of each name passes, then one a minute, whatever comes between.
func TestGate(t *testing.T) {
	var g Limiter
	start := time.Unix(1000, 0)
	for _, c := range []struct {
		name  string
		after time.Duration
		want  bool
	}{
		{"a", 0, true}, {"a", 0, false}, {"b", time.Second, true}, {"a", Interval - 1, false}, {"a", Interval, true},
		{"b", Interval, false}, {"b", Interval + time.Second, true}, {"a", 2*Interval - 1, false}, {"", 2 * Interval, true},
	} {
		if got := g.Allow(c.name, start.Add(c.after)); got != c.want {
			t.Errorf("%q after %v: %v", c.name, c.after, got)
		}
	}
}

// TestGateIsBounded: names that are invented are told up to a number, and forgotten.
func TestGateIsBounded(t *testing.T) {
	var g Limiter
	now, told := time.Unix(1000, 0), 0
	for i := range 3 * MaxKeys {
		if g.Allow(strconv.Itoa(i), now) {
			told++
		}
	}
	if told != MaxKeys || g.Len() != MaxKeys {
		t.Errorf("%d told, %d kept", told, g.Len())
	}
	if !g.Allow("later", now.Add(Interval)) || g.Len() != 1 {
		t.Errorf("%d kept after a minute", g.Len())
	}
}
