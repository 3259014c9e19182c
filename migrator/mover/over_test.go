package mover_test

import (
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// TestRequestEndsWhilePulled moves a request that ends long before its blocks
// are there: neither side goes on for the rest of the round.
func TestRequestEndsWhilePulled(t *testing.T) {
	within(t, 2, 10_000, func(t *testing.T, w *world) { // ten tokens a second
		w.nodes[0].front.accept("a/1", prompt(1, 100), 140, w.nodes[0])
		time.Sleep(20 * time.Millisecond)
		start := time.Now()
		w.move("a/1", w.nodes[0], w.nodes[1], policies.Growth)
		took := time.Since(start)
		for _, n := range w.nodes {
			if m := n.ended(t); m.Why != "request over" {
				t.Errorf("%s: %+v", n.id, m)
			}
		}
		if took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
