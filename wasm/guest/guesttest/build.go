// Package guesttest builds policy modules, runs them in the host, and compares them with
// native policies. It is for tests only. An author calls
//
//	code := guesttest.Build(t, ".")
//	guesttest.Compare(t, guesttest.Start(t, guesttest.Load(t, code, host.Config{})), myPolicy{})
package guesttest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Build builds the main package in dir as a module, as "make plugins" does. Without a go
// command it skips the test, or fails it under CI. It fails the test if the package does
// not build.
func Build(t testing.TB, dir string) []byte {
	t.Helper()
	SkipUnderRace(t)
	if _, err := exec.LookPath("go"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("no go command to build a module with")
		}
		t.Skip("no go command to build a module with")
	}
	out := filepath.Join(t.TempDir(), "policy.wasm")
	cmd := exec.Command("go", "build", "-buildmode=c-shared", "-trimpath", "-buildvcs=false", "-ldflags=-w -buildid=", "-o", out, ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "GOWASM=", "GOFLAGS=", "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build in %s: %v\n%s", dir, err, msg)
	}
	code, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return code
}
