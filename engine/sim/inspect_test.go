package sim

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// TestInspect looks into the batches of two replicas, one of which has two requests, the other none.
func TestInspect(t *testing.T) {
	source := requests{{Input: 100, Output: 300}, {Input: 50, Output: 200}, {Input: 10, Output: 300}}
	var seen [][]policies.Tokens
	run(t, Config{Replicas: 2, InspectInterval: time.Second, Inspect: func(replica int, lengths []policies.Tokens) {
		if replica == 0 {
			seen = append(seen, slices.Sorted(slices.Values(lengths)))
		}
	}}, &source)
	// Round robin sends the first and the third to replica 0, where the first has an iteration for itself; one takes a
	// little more than 10.2 ms.
	if len(seen) != 3 || len(seen[0]) != 2 || seen[0][1]-seen[0][0] != 91 || seen[0][0] != 106 || seen[2][1] != 392 {
		t.Errorf("replica 0 had %v", seen)
	}
	c := Config{Replicas: 1, Profile: profile, Policy: "round-robin", Source: &requests{}, Inspect: func(int, []policies.Tokens) {}}
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), "every 0s") {
		t.Errorf("inspections without an interval: %v", err)
	}
}
