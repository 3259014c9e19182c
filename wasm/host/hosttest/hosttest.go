// Package hosttest provides modules for tests of package host and its users: one in
// standard Go that decides every kind as the native policies do, and small ones,
// good and bad, that are assembled from instructions. It is for tests only.
package hosttest

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

var (
	guestOnce sync.Once
	guestCode []byte
	guestFail string
)

// Guest builds the Go guest, once per process. Without a go command it skips the test, or
// fails it under CI. It skips the test under the race detector, where compiling 2 MB takes
// a minute.
func Guest(t testing.TB) []byte {
	t.Helper()
	if raceEnabled {
		t.Skip("compiling a guest of 2 MB under the race detector takes too long")
	}
	if _, err := exec.LookPath("go"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("no go command to build the guest with")
		}
		t.Skip("no go command to build the guest with")
	}
	guestOnce.Do(build)
	if guestFail != "" {
		t.Fatal(guestFail)
	}
	return guestCode
}

func build() {
	dir, err := os.MkdirTemp("", "guest")
	if err != nil {
		guestFail = err.Error()
		return
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "guest.wasm")
	cmd := exec.Command("go", "build", "-trimpath", "-buildmode=c-shared", "-ldflags=-w -buildid=", "-o", out,
		"github.com/cascadeinfer/cascade/wasm/host/hosttest/testdata/guest")
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		guestFail = "go build: " + err.Error() + "\n" + string(msg)
		return
	}
	if guestCode, err = os.ReadFile(out); err != nil {
		guestFail = err.Error()
	}
}
