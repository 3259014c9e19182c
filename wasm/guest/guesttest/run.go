package guesttest

import (
	"context"
	"testing"

	"github.com/cascadeinfer/cascade/wasm/host"
)

// SkipUnderRace skips tests of modules under the race detector: it makes compiling a
// module in Go take ten times as long, and modules run on one goroutine.
func SkipUnderRace(t testing.TB) {
	t.Helper()
	if race {
		t.Skip("modules are tested without the race detector")
	}
}

// Load compiles a module, and closes it when the test ends.
func Load(t testing.TB, code []byte, c host.Config) *host.Module {
	t.Helper()
	SkipUnderRace(t)
	m, err := host.Load(context.Background(), c, code)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// Start creates an instance of a module, and closes it when the test ends.
func Start(t testing.TB, m *host.Module) *host.Instance {
	t.Helper()
	i, err := m.Instantiate()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	})
	return i
}
