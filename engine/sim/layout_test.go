package sim

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// TestLayout runs each policy of the market in fixed stages: the plan never changes, no replica
// runs requests that are too short for its stage (but where placement overflows into the next one), and
// requests move for the causes that the
// policy has.
func TestLayout(t *testing.T) {
	g, _ := trace.Named("mixed")
	g.Requests, g.Rate, g.Seed = 1500, 25, 5
	mix := testkit.Must(g.Generate())
	layout := Layout{Cuts: []policies.Tokens{1024, 8192}, Counts: []int{3, 2, 3}}
	for _, policy := range []string{Cascade, Paper, GrowthMoves, BlindMoves} {
		t.Run(policy, func(t *testing.T) {
			source := requests(mix)
			shortest, inspected := [8]policies.Tokens{}, 0
			s := testkit.Must(New(Config{
				Replicas: 8, Profile: testkit.Must(cost.Builtin("rtxpro6000-llama-3.1-8b")), Policy: policy, Layout: &layout, KVTokens: 130_000, Source: &source,
				Record: func(r *replay.Record) {}, InspectInterval: time.Second,
				Inspect: func(replica int, lengths []policies.Tokens) {
					inspected++
					if low := slices.Min(lengths); shortest[replica] == 0 || low < shortest[replica] {
						shortest[replica] = low
					}
				},
			}))
			result := testkit.Must(s.Run(context.Background()))
			last := result.Plans[len(result.Plans)-1]
			if len(result.Plans) != 2 || last.Decision != "fixed" || !slices.Equal(last.Counts, layout.Counts) || !slices.Equal(last.Cuts, layout.Cuts) {
				t.Errorf("plans %+v", result.Plans)
			}
			for replica, low := range shortest {
				if replica >= 3 && low <= 1024 || replica >= 5 && low <= 8192 && policy == BlindMoves || low == 0 {
					t.Errorf("replica %d ran a request of %d tokens", replica, low)
				}
			}
			sum := uint64(0)
			for _, n := range result.ReplicaTokens {
				sum += n
			}
			if len(result.ReplicaTokens) != 8 || sum != result.Engines.GenerationTokens || inspected < 100 {
				t.Errorf("%v of %d tokens, %d inspections", result.ReplicaTokens, result.Engines.GenerationTokens, inspected)
			}
			m := result.Moves
			alone := policy == GrowthMoves || policy == BlindMoves
			if m.Growth == 0 || alone && m.Outlier+m.Spill > 0 || (policy == BlindMoves) != (m.Placed == 0) {
				t.Errorf("%+v", m)
			}
		})
	}
}
