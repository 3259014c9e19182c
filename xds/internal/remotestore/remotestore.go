// Package remotestore has what plan stores behind a network share, whatever serves them: how a watch
// reports what it reads, which errors are the same, and how counters are compressed, bounded, and
// saved no more often than the server's history bears.
package remotestore

import (
	"context"
	"errors"
	"time"

	"github.com/cascadeinfer/cascade/xds/store"
)

// Follow sends what is stored whenever it differs from what was sent last, until ctx ends. It reads at
// once, after each signal in changed, and after each poll, because a watch that hangs signals nothing.
// read returns the version of what was read last, and the error of this read; object returns what was
// read last.
func Follow(ctx context.Context, changed <-chan struct{}, poll time.Duration, updates chan<- store.Update, read func(context.Context) (store.Version, error), object func() store.Object) {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	var sent store.Update
	for first := true; ; {
		version, err := read(ctx)
		if ctx.Err() != nil {
			return
		}
		u := store.Update{Version: version, Err: err}
		if first || u.Version != sent.Version || !sameError(u.Err, sent.Err) {
			u.Object = object()
			select {
			case updates <- u:
			case <-ctx.Done():
				return
			}
			first, sent = false, store.Update{Version: u.Version, Err: u.Err}
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// sameError reports whether two errors say the same. While a server does not answer, the causes
// alternate.
func sameError(a, b error) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Error() == b.Error() || isSilence(a) && isSilence(b)
}

// isSilence reports whether an error says that the server does not answer.
func isSilence(err error) bool {
	var refused RefusedError
	return errors.Is(err, store.ErrUnavailable) && !errors.As(err, &refused)
}

// RefusedError says that the server refuses this control plane, or that it has no credentials. It is
// store.ErrUnavailable, because nothing is known about what is stored.
type RefusedError struct{ Cause error }

// Error implements the interface error.
func (e RefusedError) Error() string { return e.Cause.Error() }

// Is implements the interface of errors.Is.
func (RefusedError) Is(target error) bool { return target == store.ErrUnavailable }

// Unwrap implements the interface of errors.Unwrap.
func (e RefusedError) Unwrap() error { return e.Cause }

// Split divides a body into parts of a size, the last of which may be shorter. An empty body is one
// part.
func Split(body []byte, size int) (parts [][]byte) {
	for len(body) > size {
		parts, body = append(parts, body[:size]), body[size:]
	}
	return append(parts, body)
}
