package certs

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/internal/atomicfile"
)

const (
	// Interval is the time between two reads of the files.
	Interval = 2 * time.Second
	// maxFile bounds a PEM file, in bytes.
	maxFile = 1 << 20
)

// watcher reads PEM files periodically and keeps the last valid value that parse
// made of them. current may be called from any goroutine, run once.
type watcher[T any] struct {
	paths []string // the certificate's first
	parse func(contents []string, now time.Time) (*T, error)
	leaf  func(*T) *x509.Certificate
	log   *slog.Logger

	value    atomic.Pointer[T]
	rejected atomic.Pointer[string] // why the newest files are not in use; nil: they are

	// Owned by run, and by start before it.
	contents []string // of value
	problem  string   // of the files; "" for none
	repeated int      // reads in a row that found problem
}

// start reads the files for the first time. The error names the file.
func (w *watcher[T]) start() error {
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	_, err := w.read(time.Now())
	return err
}

// current returns the last valid value.
func (w *watcher[T]) current() *T { return w.value.Load() }

// run reads the files at every Interval until ctx ends, calls changed with every new
// valid value, and warns of certificates that expire. It logs a problem when a second
// read finds it again: the files are not replaced all at once.
func (w *watcher[T]) run(ctx context.Context, expiries func() []expiry, changed func(*T)) {
	expiring := newExpiryWatch(w.log)
	tick := time.NewTicker(Interval)
	defer tick.Stop()
	for {
		expiring.check(expiries(), time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		replaced, err := w.read(time.Now())
		if err != nil {
			if w.problem != err.Error() {
				w.problem, w.repeated = err.Error(), 0
			}
			if w.repeated++; w.repeated == 2 {
				why := w.problem
				w.rejected.Store(&why)
				w.log.Warn("new certificate files rejected, keeping the last valid ones", "error", err)
			}
			continue
		}
		w.problem = ""
		w.rejected.Store(nil)
		if replaced {
			changed(w.current())
		}
	}
}

// rejection returns why the newest files are not in use; "" if they are.
func (w *watcher[T]) rejection() string {
	if why := w.rejected.Load(); why != nil {
		return *why
	}
	return ""
}

// read replaces the value if the files have changed and are valid. A certificate that is not valid yet, or has expired,
// does not replace a valid one. At the start it is accepted, because this host's clock may be wrong.
func (w *watcher[T]) read(now time.Time) (replaced bool, err error) {
	contents := make([]string, len(w.paths))
	for i, path := range w.paths {
		b, err := atomicfile.Read(path, maxFile)
		if err != nil {
			return false, err
		}
		contents[i] = string(b)
	}
	if w.contents != nil && slices.Equal(contents, w.contents) {
		return false, nil
	}
	v, err := w.parse(contents, now)
	if err != nil {
		return false, err
	}
	if old := w.current(); old != nil && inTime(w.leaf(old), now) && !inTime(w.leaf(v), now) {
		from, until := w.leaf(v).NotBefore.Format(time.RFC3339), w.leaf(v).NotAfter.Format(time.RFC3339)
		return false, fmt.Errorf("%s: the certificate is valid from %s to %s, which is not now", w.paths[0], from, until)
	}
	w.contents = contents
	w.value.Store(v)
	return true, nil
}

// inTime reports whether a certificate is valid at now.
func inTime(c *x509.Certificate, now time.Time) bool {
	return !now.Before(c.NotBefore) && !now.After(c.NotAfter)
}
