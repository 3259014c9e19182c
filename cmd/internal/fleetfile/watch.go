// Package fleetfile follows the fleet file of a running process, and applies its changes.
package fleetfile

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
)

// debounce is how long a directory must be quiet before the fleet file is read:
// editors and configuration managers write in several steps.
const debounce = 200 * time.Millisecond

// debounceMax bounds the delay of a read: another program may write into the directory without a
// pause.
const debounceMax = 2 * time.Second

// pollPeriod is the time between two comparisons of the file's time and size with those at the last
// read: not every file system reports changes.
const pollPeriod = 5 * time.Second

// Watch reads the fleet file whenever it changes and passes changes to apply, until ctx ends. It
// logs an error if it cannot read the file or apply rejects it; then the last valid file stays in
// force. in is the file as read at the start.
//
// It watches the directory, because editors replace the file and Kubernetes replaces a link beside
// it.
//
// report, unless it is nil, is called after each attempt with the file in force, the fields whose changes only a
// restart applies, and the error.
func Watch(ctx context.Context, path string, in wiring.Fleet, log *slog.Logger, apply func(wiring.Fleet) error, report func(wiring.Fleet, []string, error)) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	defer w.Close()
	if err := w.Add(filepath.Dir(path)); err != nil {
		return fmt.Errorf("watch %s: %w", path, err)
	}
	if report == nil {
		report = func(wiring.Fleet, []string, error) {}
	}
	f := follower{path: path, log: log, apply: apply, report: report, in: in, seen: in}
	f.run(ctx, w.Events, w.Errors)
	return nil
}

// run reads the file at the start, after events, and at a poll that finds a change, until ctx ends.
func (f *follower) run(ctx context.Context, events <-chan fsnotify.Event, errs <-chan error) {
	// The file may have changed since it was read.
	quiet := time.NewTimer(0)
	defer quiet.Stop()
	poll := time.NewTicker(pollPeriod)
	defer poll.Stop()
	var since time.Time // time of the first event that was not handled; zero: none
	putOff := func() {
		now := time.Now()
		if since.IsZero() {
			since = now
		}
		quiet.Reset(min(debounce, since.Add(debounceMax).Sub(now)))
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			putOff()
		case err := <-errs:
			// Events may be lost; the next poll detects the change.
			f.log.Warn("watching the fleet file failed", "file", f.path, "error", err)
			putOff()
		case <-poll.C:
			if since.IsZero() && statFile(f.path) != f.stamp {
				putOff()
			}
		case <-quiet.C:
			since = time.Time{}
			f.stamp = statFile(f.path) // before reading: a change after this is a new one
			f.reload()
		}
	}
}

// fileState identifies a version of the file well enough to detect most changes; the zero value is
// a missing file.
type fileState struct {
	modified time.Time
	size     int64
}

// statFile returns the state of a file.
func statFile(path string) fileState {
	info, err := os.Stat(path)
	if err != nil {
		return fileState{}
	}
	return fileState{info.ModTime(), info.Size()}
}

// follower applies changes of a fleet file.
type follower struct {
	path   string
	log    *slog.Logger
	apply  func(wiring.Fleet) error
	report func(wiring.Fleet, []string, error)
	in     wiring.Fleet // the configuration in force
	seen   wiring.Fleet // the configuration last read
	stamp  fileState    // state of the file at the last check; owned by run
	bad    string       // the error that was logged last; "" after a successful read
}

// reload reads the file and applies its differences to the configuration last read.
func (f *follower) reload() {
	fleet, err := wiring.Load(f.path)
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
	waiting := f.needRestart(fleet)
	f.report(fleet, waiting, nil)
	f.logRemoved(fleet)
	f.log.Info("fleet file reloaded", "file", f.path, "replicas", len(fleet.Fleet.Replicas))
	if len(waiting) > 0 {
		f.log.Warn("fleet file has changes that need a restart; only changes of replicas were applied", "file", f.path, "fields", waiting)
	}
	f.in.Fleet.Replicas = fleet.Fleet.Replicas
}

// refuse logs an error, unless it equals the last one logged: every change in the directory makes
// run read the file.
func (f *follower) refuse(err error) {
	if err.Error() == f.bad {
		return
	}
	f.bad = err.Error()
	f.report(f.in, nil, err)
	f.log.Error("fleet file rejected, keeping the last valid one", "error", err)
}

// logRemoved names the replicas that a file no longer has: a file that was cut looks like one that
// removes them.
func (f *follower) logRemoved(next wiring.Fleet) {
	var gone []string
	for _, r := range f.in.Fleet.Replicas {
		if !slices.ContainsFunc(next.Fleet.Replicas, func(n config.Replica) bool { return n.ID == r.ID }) {
			gone = append(gone, r.ID)
		}
	}
	if len(gone) > 0 {
		f.log.Warn("fleet file removes replicas", "file", f.path, "replicas", gone)
	}
}

// needRestart lists the fields whose changes only a restart applies: all but the replicas.
func (f *follower) needRestart(next wiring.Fleet) []string {
	now := f.in
	now.Fleet.Replicas, next.Fleet.Replicas = nil, nil
	if reflect.DeepEqual(now, next) {
		return nil
	}
	if fields := now.Differences(&next); len(fields) > 0 {
		return fields
	}
	return []string{"a file that it names"}
}
