package guesttest

import (
	"context"
	"testing"

	"github.com/cascadeinfer/cascade/wasm/host"
)

// SkipUnderRace skips tests of modules under the race detector: compiling one in
// Go takes ten times as long then, and modules run on one goroutine.
func SkipUnderRace(t testing.TB) {
	t.Helper()
	if race {
		t.Skip("modules are tested without the race detector")
	}
}

// Load compiles a module, for as long as the test runs.
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

// Start makes an instance of a module, for as long as the test runs.
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
