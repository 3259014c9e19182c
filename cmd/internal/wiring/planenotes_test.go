package wiring

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/store"
)

// TestPlaneNotesHang checks that notes are read, and that a file system that does not answer is
// left when the context ends; a pipe without a writer stands for it.
func TestPlaneNotesHang(t *testing.T) {
	state := t.TempDir()
	fleet := &Fleet{}
	fleet.State = state
	folder := filepath.Join(state, store.Notes)
	writeFile(t, filepath.Join(folder, "a"), "{}")
	if got := fleet.PlaneNotes(t.Context()); len(got) != 1 || string(got[0]) != "{}" {
		t.Fatalf("notes: %q", got)
	}
	pipe := filepath.Join(folder, "b")
	testkit.NoError(t, syscall.Mkfifo(pipe, 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var notes atomic.Pointer[[][]byte]
	go func() { got := fleet.PlaneNotes(ctx); notes.Store(&got) }()
	testkit.WaitFor(t, "the read of the pipe", func() bool {
		p, err := os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if errors.Is(err, syscall.ENXIO) { // no reader yet
			return false
		}
		testkit.NoError(t, err)
		t.Cleanup(func() { p.Close() }) // ends the read
		return true
	})
	cancel()
	testkit.WaitFor(t, "the end of the context", func() bool { return notes.Load() != nil })
	if got := *notes.Load(); len(got) > 1 {
		t.Errorf("notes: %q", got)
	}
}
