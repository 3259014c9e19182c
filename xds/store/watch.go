package store

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Watch implements Plans. Signals of the backend only say when to read: a read sees what is
// stored, whatever the watch has missed.
func (s *Store) Watch(ctx context.Context) <-chan Update {
	updates := make(chan Update)
	go func() {
		defer close(updates)
		changed := make(chan struct{}, 1)
		var signals sync.WaitGroup
		defer signals.Wait()
		signals.Go(func() {
			for ctx.Err() == nil {
				s.backend.WatchRoot(ctx, changed)
				select {
				case <-time.After(pollInterval):
				case <-ctx.Done():
				}
			}
		})
		s.follow(ctx, changed, updates)
	}()
	return updates
}

// follow sends what is stored whenever it differs from what was sent last, or from what this Store has
// written since, until ctx ends. It reads at once, after each signal, and once a second.
func (s *Store) follow(ctx context.Context, changed <-chan struct{}, updates chan<- Update) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	var have content
	var sent Update
	var wrote Version // by this Store, and compared with what was read after it
	for first := true; ; {
		lastWrite := s.lastWrite()
		reading, cancel := context.WithTimeout(ctx, readTimeout)
		got, err := s.read(reading, have)
		cancel()
		if ctx.Err() != nil {
			return
		}
		replaced := false
		if err == nil {
			// What was sent before a write of this Store, and is stored again after it, is a change.
			have, replaced = got, lastWrite != wrote && lastWrite != got.version
			wrote = lastWrite
		}
		if first || have.version != sent.Version || replaced || !sameError(err, sent.Err) {
			select {
			case updates <- Update{Object: have.object(), Version: have.version, Err: err}:
			case <-ctx.Done():
				return
			}
			first, sent = false, Update{Version: have.version, Err: err}
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// lastWrite returns the version that this Store wrote last, "" for none.
func (s *Store) lastWrite() Version {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last.version
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
	return errors.Is(err, ErrUnavailable) && !errors.As(err, &refused)
}
