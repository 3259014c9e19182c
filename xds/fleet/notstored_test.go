package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/store"
)

// failingStore is a store whose writes fail as they do on a full disk; each error names
// another temporary file.
type failingStore struct {
	store.Memory
	mu     sync.Mutex
	why    error
	writes int
}

func (s *failingStore) CompareAndSwap(context.Context, store.Version, store.Object) (store.Version, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	return "", fmt.Errorf("plan file x: %w", &fs.PathError{Op: "open", Path: fmt.Sprint("x.tmp", s.writes), Err: s.why})
}

func (s *failingStore) fail(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.why = why
}

// TestNotStoredLoggedOnce checks that a store that fails repeatedly is logged once a
// minute with the cause, and that another cause is logged at once.
func TestNotStoredLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &failingStore{why: syscall.ENOSPC}
		var log bytes.Buffer
		f, err := New(Config{Rules: testRules(""), Replicas: []policies.Replica{testReplica("r0")}, Store: st, Publisher: new(snapshotRecorder), Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		time.Sleep(50 * time.Second)
		st.fail(syscall.EROFS)
		time.Sleep(50 * time.Second) // a minute after the first failure, less than a minute after the second
		st.fail(syscall.ENOSPC)
		time.Sleep(20 * time.Second)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		text := log.String()
		if full, only := strings.Count(text, "no space left on device"), strings.Count(text, "read-only file system"); full != 2 || only != 1 || st.writes < 20 {
			t.Errorf("%d writes, logged %d and %d times:\n%s", st.writes, full, only, text)
		}
	})
}

func TestReason(t *testing.T) {
	for want, err := range map[string]error{
		"open: no space left on device": fmt.Errorf("a: %w", &fs.PathError{Op: "open", Path: "a1", Err: syscall.ENOSPC}),
		"rename: file exists":           fmt.Errorf("a: %w", &os.LinkError{Op: "rename", Old: "a1", New: "b", Err: syscall.EEXIST}),
		"garbage":                       errors.New("garbage"),
	} {
		if got := stableText(err); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
