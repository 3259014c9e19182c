package move_test

import (
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// TestFreezeAwaitsTarget migrates a request to an engine that prefills: the source freezes it only
// when the target is between two short steps, so its client does not wait for the target's prompts.
func TestFreezeAwaitsTarget(t *testing.T) {
	for name, length := range map[string]int{"short": 3, "long": 50} {
		runInFleet(t, 2, 0, func(t *testing.T, w *fleet) {
			a, b := w.replicas[0], w.replicas[1]
			a.frontEnd.startStream("a/1", prompt(1, length), 400, a)
			time.Sleep(time.Duration(10*length) * time.Millisecond)
			b.engine.prefillUntil(time.Now().Add(3 * time.Second))
			begun := time.Now()
			w.move("a/1", a, b, policies.Outlier)
			m := a.waitForEnd(t)
			if took := time.Since(begun); m.State != "moved" || m.Mode != "live" || took < 2500*time.Millisecond || took > 4*time.Second {
				t.Errorf("%s: the migration took %v: %+v", name, took, m)
			}
			if m.Stall > 200*time.Millisecond {
				t.Errorf("%s: the client waited %v for the target's prefill", name, m.Stall)
			}
		})
	}
}

// TestFrozenAwaitsNothing migrates a request to an engine that begins to prefill at one of the
// instants of the migration. Once the request is frozen, the target takes it over at once, however
// long its step is: the token after that step is the first that it can have.
func TestFrozenAwaitsNothing(t *testing.T) {
	for instant := time.Duration(0); instant < 40*time.Millisecond; instant += time.Millisecond {
		runInFleet(t, 2, 0, func(t *testing.T, w *fleet) {
			a, b := w.replicas[0], w.replicas[1]
			a.frontEnd.startStream("a/1", prompt(1, 50), 400, a)
			time.Sleep(100 * time.Millisecond)
			time.AfterFunc(instant, func() { b.engine.prefillUntil(time.Now().Add(time.Second)) })
			w.move("a/1", a, b, policies.Outlier)
			if m := a.waitForEnd(t); m.State != "moved" || m.Stall > 200*time.Millisecond {
				t.Errorf("the prefill begins after %v: %+v", instant, m)
			}
		})
	}
}

// TestFreezeAwaitsNoTarget checks that a target whose steps are always long does not keep a request
// from migrating: it could not drain otherwise.
func TestFreezeAwaitsNoTarget(t *testing.T) {
	runInFleet(t, 2, 0, func(t *testing.T, w *fleet) {
		a, b := w.replicas[0], w.replicas[1]
		a.frontEnd.startStream("a/1", prompt(1, 50), 1500, a)
		time.Sleep(100 * time.Millisecond)
		b.engine.prefillUntil(time.Now().Add(time.Hour))
		w.move("a/1", a, b, policies.Drain)
		if m := a.waitForEnd(t); m.State != "moved" {
			t.Errorf("the request stays: %+v", m)
		}
	})
}
