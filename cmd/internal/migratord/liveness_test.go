package migratord

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// TestLiveness checks that a peer is alive while its streams make progress, and not because streams
// end.
func TestLiveness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := liveness{last: make(map[policies.ReplicaID]progressSample)}
		note := func(n uint64) { time.Sleep(maxSampleAge / 2); s.record(map[policies.ReplicaID]uint64{"b": n}) }
		for n := range uint64(5) {
			if note(100 + n); !s.isAlive("b") {
				t.Errorf("dead at %d", n)
			}
		}
		for n := range uint64(5) {
			note(90 - n)
		}
		if s.isAlive("b") {
			t.Error("ended streams count as progress")
		}
		if note(87); !s.isAlive("b") {
			t.Error("dead although a stream makes progress")
		}
		if s.isAlive("c") {
			t.Error("c is unknown")
		}
	})
}
