package testkit

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
)

// WaitTimeout returns how long a wait takes before it fails. No working test comes near it,
// on a slow machine with other work and the race detector either. Only make mutate, whose
// tests are to fail, sets $CASCADE_WAIT to less.
func WaitTimeout() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("CASCADE_WAIT")); err == nil {
		return d
	}
	return 4 * time.Minute
}

// WaitFor waits until a condition holds that other goroutines or processes bring about
// without an event for it. It fails the test, with the name of the condition, after
// WaitTimeout.
func WaitFor(t testing.TB, what string, holds func() bool) {
	t.Helper()
	WaitForValue(t, what, holds, func(ok bool) bool { return ok })
}

// WaitForValue waits as WaitFor does until a value fits, and returns it. The failure
// shows the last value. If the test fails meanwhile, for instance because a process
// that it started has failed, the wait ends at once.
func WaitForValue[T any](t testing.TB, what string, read func() T, fits func(T) bool) T {
	t.Helper()
	var v T
	fitted, failed := false, t.Failed()
	holds := func() bool {
		v = read()
		fitted = fits(v)
		return fitted || !failed && t.Failed()
	}
	if err := WaitUntil(what, holds); err != nil || !fitted {
		t.Fatalf("waiting for %s: %v; last: %+v", what, cmp.Or(err, errFailed), v)
	}
	return v
}

// errFailed is why a wait ends early.
var errFailed = errors.New("the test has failed meanwhile")

// WaitUntil waits as WaitFor does, for goroutines other than the test's, which cannot end the test: after WaitTimeout it
// returns an error with the name of the condition.
func WaitUntil(what string, holds func() bool) error {
	end := time.Now().Add(WaitTimeout())
	for pause := 100 * time.Microsecond; !holds(); pause = min(2*pause, 20*time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("timed out waiting for %s", what)
		}
		time.Sleep(pause)
	}
	return nil
}

// WaitForEvent waits until a channel is closed, or has a value. It fails the test, with
// the name of the event, after WaitTimeout.
func WaitForEvent[T any](t testing.TB, what string, event <-chan T) {
	t.Helper()
	select {
	case <-event:
	case <-time.After(WaitTimeout()):
		t.Fatalf("timed out waiting until %s", what)
	}
}
