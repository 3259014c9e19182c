package testkit

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// failedTest is a test that another goroutine fails.
type failedTest struct {
	testing.TB
	failed bool
	fatal  string
}

func (f *failedTest) Failed() bool { return f.failed }
func (f *failedTest) Fatalf(format string, args ...any) {
	f.fatal = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// TestWaitEndsWithTheTest checks that a wait ends at once when the test fails meanwhile, and only then.
func TestWaitEndsWithTheTest(t *testing.T) {
	wait := func(f *failedTest, holds func() bool) time.Duration {
		began, done := time.Now(), make(chan struct{})
		go func() {
			defer close(done)
			WaitFor(f, "never", holds)
		}()
		<-done
		return time.Since(began)
	}
	f := &failedTest{TB: t}
	if took := wait(f, func() bool { f.failed = true; return false }); took > WaitTimeout()/2 || !strings.Contains(f.fatal, "failed meanwhile") {
		t.Errorf("after %v: %q", took, f.fatal)
	}
	f, asked := &failedTest{TB: t, failed: true}, 0
	if wait(f, func() bool { asked++; return asked > 2 }); f.fatal != "" {
		t.Errorf("a test that had failed before: %q", f.fatal)
	}
}
