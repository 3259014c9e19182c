package main

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/cascadeinfer/cascade/cmd/wire"
)

// settle is how long a directory must be quiet before the fleet file is read:
// editors and configuration managers write in several steps.
const settle = 200 * time.Millisecond

// watch reads the fleet file whenever it changes and hands what is new over to
// apply, until ctx ends. A file that cannot be read or that apply refuses is
// logged, and what was in force stays. in is what was read at the start.
//
// It watches the directory, because editors replace the file and Kubernetes
// replaces a link beside it.
func watch(ctx context.Context, path string, in wire.Fleet, log *slog.Logger, apply func(wire.Fleet) error) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	defer w.Close()
	if err := w.Add(filepath.Dir(path)); err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	f := follower{path: path, log: log, apply: apply, in: in, seen: in}
	// The file may have changed since it was read.
	quiet := time.NewTimer(0)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.Events:
			quiet.Reset(settle)
		case err := <-w.Errors:
			// Events may be lost; the next look finds what they told.
			log.Warn("watch of the fleet file", "file", path, "error", err)
			quiet.Reset(settle)
		case <-quiet.C:
			f.look()
		}
	}
}

// follower takes over changes of a fleet file.
type follower struct {
	path  string
	log   *slog.Logger
	apply func(wire.Fleet) error
	in    wire.Fleet // in force
	seen  wire.Fleet // last read
	bad   string     // the error that was logged last; "" after a good reading
}

// look reads the file and applies what differs from what was read before.
func (f *follower) look() {
	fleet, err := wire.Load(f.path)
	if err != nil {
		f.refuse(err)
		return
	}
	if f.bad == "" && reflect.DeepEqual(fleet, f.seen) {
		return
	}
	f.seen = fleet
	if err := f.apply(fleet); err != nil {
		f.refuse(fmt.Errorf("%s: %w", f.path, err))
		return
	}
	f.bad = ""
	f.log.Info("fleet file taken over", "file", f.path, "replicas", len(fleet.Fleet.Replicas))
	if !sameButReplicas(fleet, f.in) {
		f.log.Warn("only replicas are taken over while running; the file's other changes need a restart", "file", f.path)
	}
	f.in.Fleet.Replicas = fleet.Fleet.Replicas
}

// refuse logs an error, but not the same one again: any change in the
// directory makes look read the file.
func (f *follower) refuse(err error) {
	if err.Error() == f.bad {
		return
	}
	f.bad = err.Error()
	f.log.Error("fleet file refused; the last good one stays in force", "error", err)
}

// sameButReplicas reports whether two fleets differ in their replicas alone.
func sameButReplicas(a, b wire.Fleet) bool {
	a.Fleet.Replicas, b.Fleet.Replicas = nil, nil
	return reflect.DeepEqual(a, b)
}
