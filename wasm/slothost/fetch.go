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
	// retryAfter is when a spec that could not be written is tried again: a full disk
	// may have room by then.
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
		for _, c := range s.slots[kind].missing() {
			missing[c.digest] = true
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

// wanting is a candidate whose module is to be fetched.
type wanting struct {
	*lifecycle.Candidate
	digest lifecycle.Digest
}

// missing returns the candidates of the spec whose modules are to be fetched: those that
// are not loaded, not being built, and not ended here. The lock of Slots is held.
func (k *slot) missing() (all []wanting) {
	phases := k.phases()
	for i := range k.spec.Candidates {
		if c := &k.spec.Candidates[i]; c.Module == nil && k.offerable(c.Generation, phases) {
			all = append(all, wanting{c, k.about[c.Generation].statement.Digest})
		}
	}
	return all
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
		for _, c := range s.slots[kind].missing() {
			if c.digest == digest {
				c.Module = module
			}
		}
	}
	s.changed()
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

// addFetching adds the generations whose modules are being fetched to a status; their
// reason is why the last attempt failed. The lock of Slots is held.
func (s *Slots) addFetching(k *slot, st *lifecycle.SlotStatus) {
	for _, c := range k.missing() {
		if f := s.fetches[c.digest]; f != nil {
			st.Modules = append(st.Modules, lifecycle.Status{Generation: c.Generation, Phase: lifecycle.Fetching,
				Goal: c.Goal, Permille: c.Permille, SHA256: c.digest, Reason: f.reason})
		}
	}
}

// retryWrites applies the specs that could not be written.
func (s *Slots) retryWrites() {
	for _, kind := range s.config.Kinds {
		s.mu.Lock()
		spec := s.slots[kind].unwritten
		s.mu.Unlock()
		if spec != nil {
			_ = s.Apply(*spec) // Status reports the error
		}
	}
}
