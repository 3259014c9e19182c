package sim

import (
	"math"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestSlowReplica checks that front ends find out which replica is slower than its profile, that it gets less to do
// for it, and that they follow when it is as fast as the others again.
func TestSlowReplica(t *testing.T) {
	const slow = 2
	simulate := func(until time.Duration) ([]float64, []uint64) {
		s := testkit.Must(New(Config{
			Replicas: 4, Profile: profile, Policy: Cascade, Source: mix(3000, 40, 1),
			Faults: []Fault{{Kind: Slow, Replica: slow, Speed: 0.6, Until: until}},
		}))
		result := testkit.Must(s.Run(t.Context()))
		var slowdowns []float64
		for _, f := range s.cascade.fronts {
			slowdowns = append(slowdowns, f.peers.Slowdown())
		}
		return slowdowns, result.Engines.Generated
	}
	slowdowns, generated := simulate(0)
	for i, got := range slowdowns {
		want := 1.0
		if i == slow {
			want = 1 / 0.6
		} else if 10*generated[slow] > 8*generated[i] {
			t.Errorf("replica %d generated %d tokens, the slow one %d", i, generated[i], generated[slow])
		}
		if math.Abs(got/want-1) > 0.1 {
			t.Errorf("replica %d is taken to be %.2f times as slow, not %.2f", i, got, want)
		}
	}
	if slowdowns, _ := simulate(20 * time.Second); math.Abs(slowdowns[slow]-1) > 0.2 {
		t.Errorf("55 s after it was slow it is taken to be %.2f times as slow", slowdowns[slow])
	}
}
