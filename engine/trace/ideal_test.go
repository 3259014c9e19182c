package trace

import (
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

// TestIdealCache checks what an unbounded cache hits, prompt by prompt.
func TestIdealCache(t *testing.T) {
	var c IdealCache
	if _, ok := c.HitRate(); ok {
		t.Error("an empty cache has a hit rate")
	}
	for i, step := range []struct {
		input  int64
		prefix []uint64
		want   int64
	}{
		{1000, []uint64{1, 2}, 0},
		{1600, []uint64{1, 2, 3, 4}, 1024}, // the next turn
		{1024, []uint64{1, 2}, 1023},       // all of it, but for the last token
		{1024, []uint64{9, 2}, 0},          // a known block after an unknown one
		{512, nil, 0},                      // nothing is known
		{700, []uint64{1, 7}, 512},         // another conversation with the same beginning
	} {
		if got := c.Add(Request{Input: policies.Tokens(step.input), Output: 1, Prefix: step.prefix}); int64(got) != step.want {
			t.Errorf("request %d: %d tokens are cached, want %d", i, got, step.want)
		}
	}
	if got, ok := c.HitRate(); !ok || got != float64(1024+1023+512)/(1000+1600+1024+1024+512+700) {
		t.Errorf("hit rate %v, %v", got, ok)
	}
	var plain IdealCache
	plain.Add(Request{Input: 10, Output: 1})
	if _, ok := plain.HitRate(); ok || plain.Named() {
		t.Error("a trace without prefix ids has a hit rate")
	}
}

// TestIdealLimit checks that a cache of more blocks than its limit has no hit rate.
func TestIdealLimit(t *testing.T) {
	c := IdealCache{Limit: 3}
	c.Add(Request{Input: 1600, Prefix: []uint64{0, 2, 3}})
	c.Add(Request{Input: 1600, Prefix: []uint64{0, 2, 3}})
	if got, ok := c.HitRate(); !ok || got != 1536.0/3200 {
		t.Errorf("at the limit: %v, %v", got, ok)
	}
	c.Add(Request{Input: 1600, Prefix: []uint64{0, 2, 4}})
	if got, ok := c.HitRate(); ok || len(c.seen) > 0 || !c.Named() {
		t.Errorf("beyond it: %v, and %d blocks", got, len(c.seen))
	}
}
