package sim

import (
	"math"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
)

// conversations returns n requests, one every 100 ms, of which every second one repeats the first 1,024
// tokens of the one before.
func conversations(n int) *requests {
	var out requests
	for i := range n {
		first := uint64(i / 2 * 10)
		r := trace.Request{At: time.Duration(i) * 100 * time.Millisecond, Input: 1536, Output: 4, Prefix: []uint64{first, first + 1, first + 2}}
		if i%2 == 1 {
			r.Prefix[2] += 5
		}
		out = append(out, r)
	}
	return &out
}

// TestReuse checks hit rate and spread of load where both are known: on one replica of two nothing is lost,
// under round robin on two all, because the turns of a conversation alternate.
func TestReuse(t *testing.T) {
	for _, c := range []struct {
		policy       string
		replicas     int
		of, low, top float64
	}{
		{"round-robin", 1, 1, -1, -1},
		{"round-robin", 2, 0, 0, 0.1},
		{"prefix-tree", 2, 1, 0, 1},
	} {
		result, records := run(t, Config{Policy: c.policy, Replicas: c.replicas}, conversations(400))
		u := result.Reuse
		if u == nil || u.Source != replay.FromUsage && c.of > 0 || math.Abs(u.Ideal-1.0/3) > 1e-9 {
			t.Fatalf("%s: %+v", c.policy, u)
		}
		if math.Abs(u.OfIdeal-c.of) > 1e-9 || u.LoadCV < c.low || u.LoadCV > c.top {
			t.Errorf("%s on %d: %v of the ideal, load CV %v", c.policy, c.replicas, u.OfIdeal, u.LoadCV)
		}
		if r := records[1]; r.Prompt != 1536 {
			t.Errorf("%s: record %+v", c.policy, r)
		}
	}
	if result, _ := run(t, Config{}, &requests{{Input: 10, Output: 2}}); result.Reuse != nil {
		t.Errorf("without prefixes: %+v", result.Reuse)
	}
}

// TestStagesOfBalance checks that load is compared inside stages: with all requests in the first of two
// stages of one replica each, there is nothing to compare.
func TestStagesOfBalance(t *testing.T) {
	stages := policies.Partition{Cuts: []policies.Tokens{4096}, Counts: []int{1, 1}}
	result, _ := run(t, Config{Policy: "without-moves", Replicas: 2, Stages: stages}, conversations(100))
	if u := result.Reuse; u == nil || u.LoadCV != -1 {
		t.Errorf("one replica in each stage: %+v", u)
	}
	stages = policies.Partition{Cuts: []policies.Tokens{4096}, Counts: []int{2, 1}}
	result, _ = run(t, Config{Policy: "without-moves", Replicas: 3, Stages: stages}, conversations(400))
	if u := result.Reuse; u == nil || u.LoadCV < 0 || u.LoadCV > 0.5 {
		t.Errorf("two replicas in the first stage: %+v", u)
	}
}
