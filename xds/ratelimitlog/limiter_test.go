package ratelimitlog

import (
	"strconv"
	"testing"
	"time"
)

// TestLimiter: the first of each name is allowed, then one a minute, whatever comes between.
func TestLimiter(t *testing.T) {
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

// TestLimiterIsBounded: invented names are allowed up to a number, and forgotten.
func TestLimiterIsBounded(t *testing.T) {
	var g Limiter
	now, allowed := time.Unix(1000, 0), 0
	for i := range 3 * MaxKeys {
		if g.Allow(strconv.Itoa(i), now) {
			allowed++
		}
	}
	if allowed != MaxKeys || g.Len() != MaxKeys {
		t.Errorf("%d allowed, %d kept", allowed, g.Len())
	}
	if !g.Allow("later", now.Add(Interval)) || g.Len() != 1 {
		t.Errorf("%d kept after a minute", g.Len())
	}
}
