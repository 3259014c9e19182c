package trace

import (
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

// TestSampleConversations checks that a sample has whole conversations, about as many as it should, in the
// order of the trace, so that as many requests find several times as much of their prompts.
func TestSampleConversations(t *testing.T) {
	const conversations, turns = 400, 5
	var all []Request
	for turn := range turns {
		for c := range conversations {
			r := Request{Input: policies.Tokens(2+turn) * BlockTokens, Output: 1, Prefix: []uint64{7}}
			for block := range 1 + turn {
				r.Prefix = append(r.Prefix, uint64(1000+10*c+block))
			}
			all = append(all, r)
		}
	}
	for range 100 { // no conversation: nothing behind what all share, or no names
		all = append(all, Request{Input: 100, Output: 1, Prefix: []uint64{7}}, Request{Input: 99, Output: 1})
	}
	if got := SampleConversations(all, 1); len(got) != len(all) {
		t.Errorf("one in one keeps %d of %d", len(got), len(all))
	}
	for _, n := range []int{2, 4, 10} {
		got := SampleConversations(all, n)
		counts, alone, last := map[uint64]int{}, 0, -1
		for _, r := range got {
			at := slices.IndexFunc(all[last+1:], func(o Request) bool { return o.Input == r.Input && slices.Equal(o.Prefix, r.Prefix) })
			if at < 0 {
				t.Fatalf("one in %d: a request is not in the order of the trace", n)
			}
			if last += 1 + at; len(r.Prefix) > 1 {
				counts[r.Prefix[1]]++
			} else {
				alone++
			}
		}
		if alone != 200/n {
			t.Errorf("one in %d keeps %d of 200 requests without a conversation", n, alone)
		}
		if share := float64(len(counts)*n) / conversations; share < 0.7 || share > 1.3 {
			t.Errorf("one in %d keeps %d of %d conversations", n, len(counts), conversations)
		}
		for id, c := range counts {
			if c != turns {
				t.Errorf("one in %d keeps %d of the %d turns of conversation %d", n, c, turns, id)
			}
		}
		if hits, slice := idealHits(got), idealHits(all[:len(got)]); hits < 1.1*slice {
			t.Errorf("one in %d: %.2f of the prompts are found, in a slice of the same length %.2f", n, hits, slice)
		}
	}
}

// idealHits returns the share of the prompts that one cache for all holds.
func idealHits(requests []Request) float64 {
	var c IdealCache
	for _, r := range requests {
		c.Add(r)
	}
	share, _ := c.HitRate()
	return share
}
