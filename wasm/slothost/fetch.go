package slothost

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

// The backoff between attempts to fetch a module. The first pause is drawn from 0 to
// minBackoff, so that the hosts of a fleet do not all ask at once.
const (
	minBackoff = 250 * time.Millisecond
	maxBackoff = 15 * time.Second
	// retryAfter is when File is written again after a failure: a full disk may have room
	// by then.
	retryAfter = 15 * time.Second
)

// fetch is the fetch of a module that a spec names and does not contain.
type fetch struct {
	cancel context.CancelFunc
	reason string // why the last attempt failed
}

// fetchMissing fetches the modules that the specs lack, each once, and ends the fetches of
// those that are not wanted any more.
func (s *Slots) fetchMissing(ctx context.Context, group *sync.WaitGroup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	missing := map[lifecycle.Digest]bool{}
	for _, kind := range s.config.Kinds {
		for _, m := range s.slots[kind].state().Modules {
			if m.Phase == lifecycle.Fetching {
				missing[m.SHA256] = true
			}
		}
	}
	for digest, f := range s.fetches {
		if !missing[digest] {
			f.cancel()
			delete(s.fetches, digest)
		}
	}
	for digest := range missing {
		if s.fetches[digest] != nil || s.config.Fetch == nil {
			continue
		}
		fetching, cancel := context.WithCancel(ctx)
		f := &fetch{cancel: cancel}
		s.fetches[digest] = f
		group.Go(func() {
			defer cancel()
			if b := s.fetchModule(fetching, digest, f); b != nil {
				s.provide(digest, f, b)
			}
		})
	}
}

// provide gives a module that was fetched to the slots that lack it.
func (s *Slots) provide(digest lifecycle.Digest, f *fetch, module []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fetches[digest] != f {
		return // it is not wanted any more
	}
	delete(s.fetches, digest)
	for _, kind := range s.config.Kinds {
		s.slots[kind].step(func(m *machine) { m.provide(digest, module) })
	}
}

// fetchModule fetches a module, with retries. It returns nil when ctx ends first.
func (s *Slots) fetchModule(ctx context.Context, digest lifecycle.Digest, f *fetch) []byte {
	pause := time.Duration(rand.Int64N(int64(minBackoff)))
	for try := 0; ; try++ {
		b, err := s.config.Fetch(ctx, digest)
		if err == nil {
			err = checkBytes(b, digest)
		}
		if err == nil {
			return b
		}
		s.mu.Lock()
		f.reason = err.Error()
		s.mu.Unlock()
		if ctx.Err() == nil && (try == 0 || pause >= maxBackoff) {
			s.config.Logger.Warn("fetching a policy module failed, retrying",
				"sha256", digest.String(), "attempts", try+1, "error", err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		pause = min(2*pause+minBackoff/2, maxBackoff)
	}
}

// checkBytes returns why bytes are not the module with the digest.
func checkBytes(b []byte, digest lifecycle.Digest) error {
	switch {
	case len(b) > maxModule:
		return fmt.Errorf("the module has %d bytes, at most %d are allowed", len(b), maxModule)
	case lifecycle.Sum(b) != digest:
		return fmt.Errorf("%d bytes do not have the digest %s", len(b), digest)
	}
	return nil
}

// addReasons adds to a status why the last attempts to fetch modules failed.
func (s *Slots) addReasons(st *lifecycle.SlotStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range st.Modules {
		if m := &st.Modules[i]; m.Phase == lifecycle.Fetching && s.fetches[m.SHA256] != nil {
			m.Reason = s.fetches[m.SHA256].reason
		}
	}
}
