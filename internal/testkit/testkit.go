package testkit

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
)

// Size returns the size of a random test: full with CASCADE_TEST_ALL, otherwise usual.
func Size(usual, full int) int {
	if os.Getenv("CASCADE_TEST_ALL") != "" {
		return full
	}
	return usual
}

// NoError fails the test at once if err is not nil.
func NoError(t testing.TB, err error) {
	if err != nil {
		t.Helper() // it takes a microsecond: not for tests and benchmarks that pass
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
