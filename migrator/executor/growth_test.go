package executor_test

import (
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// TestOutgrownReservation migrates a request over a link so slow that the request outgrows the
// slack of its reservation.
func TestOutgrownReservation(t *testing.T) {
	runInFleet(t, 2, 150_000, func(t *testing.T, w *fleet) { // 150 tokens a second; the request generates 100
		w.replicas[0].frontEnd.startStream("a/1", prompt(1, 400), 1500, w.replicas[0])
		time.Sleep(20 * time.Millisecond)
		w.move("a/1", w.replicas[0], w.replicas[1], policies.Growth)
		if m := w.replicas[1].waitForEnd(t); m.State != "moved" || m.Tokens < 400+256 {
			t.Errorf("%+v", m)
		}
	})
}

// TestNoRoomToGrow migrates requests to an engine without room for their growth, or with a maximum
// length that they reach.
func TestNoRoomToGrow(t *testing.T) {
	runInFleet(t, 2, 0, func(t *testing.T, w *fleet) {
		w.replicas[1].engine.context = 420
		w.replicas[0].frontEnd.startStream("a/1", prompt(1, 400), 420, w.replicas[0])
		time.Sleep(20 * time.Millisecond)
		w.move("a/1", w.replicas[0], w.replicas[1], policies.Growth)
		if m := w.replicas[1].waitForEnd(t); m.State != "moved" {
			t.Errorf("%+v", m)
		}
	})
}

// TestRequestEndsWhilePulled migrates a request that ends long before its blocks have arrived:
// neither side waits for the rest of the round.
func TestRequestEndsWhilePulled(t *testing.T) {
	runInFleet(t, 2, 10_000, func(t *testing.T, w *fleet) { // ten tokens a second
		w.replicas[0].frontEnd.startStream("a/1", prompt(1, 100), 140, w.replicas[0])
		time.Sleep(20 * time.Millisecond)
		start := time.Now()
		w.move("a/1", w.replicas[0], w.replicas[1], policies.Growth)
		took := time.Since(start)
		for _, n := range w.replicas {
			if m := n.waitForEnd(t); m.Failure != "request ended" {
				t.Errorf("%s: %+v", n.id, m)
			}
		}
		if took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
