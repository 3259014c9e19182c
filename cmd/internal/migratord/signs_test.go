package migratord

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// TestSigns: a peer lives while its streams go on, and not because streams that
// it holds are given up.
func TestSigns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := signs{last: make(map[policies.ReplicaID]sign)}
		note := func(n uint64) { time.Sleep(fresh / 2); s.note(map[policies.ReplicaID]uint64{"b": n}) }
		for n := range uint64(5) {
			if note(100 + n); !s.lives("b") {
				t.Errorf("dead at %d", n)
			}
		}
		for n := range uint64(5) {
			note(90 - n)
		}
		if s.lives("b") {
			t.Error("streams that end keep it alive")
		}
		if note(87); !s.lives("b") {
			t.Error("dead although a stream goes on")
		}
		if s.lives("c") {
			t.Error("nobody knows c")
		}
	})
}
