package executor_test

import (
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// TestOutgrownReservation moves a request over a link on which it grows by more
// than was set aside for that.
func TestOutgrownReservation(t *testing.T) {
	within(t, 2, 150_000, func(t *testing.T, w *world) { // 150 tokens a second; it makes 100
		w.nodes[0].front.accept("a/1", prompt(1, 400), 1500, w.nodes[0])
		time.Sleep(20 * time.Millisecond)
		w.move("a/1", w.nodes[0], w.nodes[1], policies.Growth)
		if m := w.nodes[1].ended(t); m.State != "moved" || m.Tokens < 400+256 {
			t.Errorf("%+v", m)
		}
	})
}

// TestNoRoomToGrow moves requests to an engine that has no room for them to grow,
// or whose requests may not be so long.
func TestNoRoomToGrow(t *testing.T) {
	within(t, 2, 0, func(t *testing.T, w *world) {
		w.nodes[1].engine.context = 420
		w.nodes[0].front.accept("a/1", prompt(1, 400), 420, w.nodes[0])
		time.Sleep(20 * time.Millisecond)
		w.move("a/1", w.nodes[0], w.nodes[1], policies.Growth)
		if m := w.nodes[1].ended(t); m.State != "moved" {
			t.Errorf("%+v", m)
		}
	})
}

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
			if m := n.ended(t); m.Failure != "request ended" {
				t.Errorf("%s: %+v", n.id, m)
			}
		}
		if took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
