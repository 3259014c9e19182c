package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

// TestMain makes this test binary the command "cascade" of the scripts.
func TestMain(m *testing.M) {
	os.Exit(testscript.RunMain(leakChecked{m}, map[string]func() int{"cascade": runMain}))
}

// leakChecked fails a run of tests that leaves goroutines behind.
type leakChecked struct{ *testing.M }

func (l leakChecked) Run() int {
	time.Local = time.UTC // in which expected output is
	drainPollPeriod = time.Millisecond
	// Most of these tests wait for daemons that need a processor only for a moment.
	if err := flag.Set("test.parallel", fmt.Sprint(2*runtime.GOMAXPROCS(0))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// Daemons inside the test leave sockets for their successors here.
	dir, err := os.MkdirTemp("", "cascade")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	os.Setenv("XDG_RUNTIME_DIR", dir)
	code := l.M.Run()
	if code != 0 {
		return code
	}
	// Find waits for less than half a second, which is too short for a busy machine.
	err = goleak.Find()
	for end := time.Now().Add(30 * time.Second); err != nil && time.Now().Before(end); err = goleak.Find() {
		time.Sleep(tick)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
