// Package guesttest builds policy modules, runs them in the host, and compares them with
// native policies. It is for tests only. An author calls
//
//	code := guesttest.Build(t, ".")
//	guesttest.Compare(t, guesttest.Start(t, guesttest.Load(t, code, host.Config{})), myPolicy{})
package guesttest

import (
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// SkipUnderRace skips tests of modules under the race detector: it makes compiling a
// module in Go take ten times as long, and modules run on one goroutine.
func SkipUnderRace(t testing.TB) {
	t.Helper()
	testkit.SkipUnderRace(t)
}

// Build builds the main package in dir, or the program that is one Go file, as a module, as
// "make plugins" does. Without a go command it skips the test, or fails it under CI. It fails the test if the package does
// not build.
func Build(t testing.TB, dir string) []byte {
	t.Helper()
	return hosttest.Build(t, dir)
}

// Load compiles a module, and closes it when the test ends. It keeps the machine code in
// the user's cache directory unless the configuration names a cache.
func Load(t testing.TB, code []byte, c host.Config) *host.Module {
	t.Helper()
	SkipUnderRace(t)
	if c.Cache == "" {
		c.Cache = hosttest.Cache(t)
	}
	m, err := host.Load(t.Context(), c, code)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { testkit.NoError(t, m.Close()) })
	return m
}

// Start creates an instance of a module, and closes it when the test ends.
func Start(t testing.TB, m *host.Module) *host.Instance {
	t.Helper()
	i, err := m.Instantiate()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { testkit.NoError(t, i.Close()) })
	return i
}
