package etcdtest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// fatal is a test that records why it ends.
type fatal struct {
	*testing.T
	why string
}

func (f *fatal) Fatalf(format string, args ...any) {
	f.why = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// TestFailedMember checks that a cluster whose members fail to start fails its test at once.
func TestFailedMember(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "etcd")
	testkit.NoError(t, os.WriteFile(broken, []byte("#!/bin/sh\nexit 1\n"), 0o700))
	t.Setenv("ETCD", broken)
	for _, scheme := range []string{"http", "https"} {
		f, began, done := &fatal{T: t}, time.Now(), make(chan struct{})
		go func() {
			defer close(done)
			Start(f, Config{Members: 2, Scheme: scheme})
		}()
		<-done
		if took := time.Since(began); !strings.Contains(f.why, "of 2 members run") || took > readyWithin/2 {
			t.Errorf("%s: after %v: %q", scheme, took, f.why)
		}
	}
}
