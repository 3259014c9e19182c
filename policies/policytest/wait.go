package policytest

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// waitTimeout is how long a wait takes before it fails. No working test comes near it,
// on a slow machine with other work and the race detector either.
const waitTimeout = 5 * time.Minute

// WaitFor waits until a condition holds that other goroutines or processes bring about
// without an event for it. It fails the test, with the name of the condition, after a
// time that only a broken program needs.
func WaitFor(t testing.TB, what string, holds func() bool) {
	t.Helper()
	WaitForValue(t, what, holds, func(ok bool) bool { return ok })
}

// WaitForValue waits as WaitFor does until a value fits, and returns it. The failure
// shows the last value.
func WaitForValue[T any](t testing.TB, what string, read func() T, fits func(T) bool) T {
	t.Helper()
	end := time.Now().Add(waitTimeout)
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		v := read()
		if fits(v) {
			return v
		}
		if time.Now().After(end) {
			t.Fatalf("timed out waiting for %s; last: %+v", what, v)
		}
		time.Sleep(pause)
	}
}

// Size returns the size of a random test: full with CASCADE_TEST_ALL, otherwise usual.
func Size(usual, full int) int {
	if os.Getenv("CASCADE_TEST_ALL") != "" {
		return full
	}
	return usual
}

// NoError fails the test at once if err is not nil. It costs nothing otherwise: Helper
// takes a microsecond.
func NoError(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// Must returns v, and panics if err is not nil. It is for what a test sets up and does
// not test.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Run runs f on a goroutine until the test ends, or until stop is called. Its error fails
// the test.
func Run(t testing.TB, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		NoError(t, <-done)
	})
	t.Cleanup(stop)
	return stop
}

// WantError fails the test unless the text of err contains want; "" wants no error.
func WantError(t testing.TB, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("error %v, want %q", err, want)
	}
}
