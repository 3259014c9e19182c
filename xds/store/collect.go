package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

const (
	// CollectInterval is how often Collect should be called.
	CollectInterval = time.Minute
	// ModuleGrace is how long a module stays that the object does not name: a push stores its
	// bytes before the slot that names them.
	ModuleGrace = time.Hour
)

// garbage is what earlier collections have found.
type garbage struct {
	mu      sync.Mutex
	listed  time.Time            // when parts were listed, by the monotonic clock
	unnamed []blobSet            // parts that the root did not name then
	modules map[string]time.Time // when a module was first found unused, by ID
}

// Collect removes the blobs that nothing names: the parts of former objects and of writers that
// have lost a race or died, and policy modules. The error says which remain, and why; it is to be
// shown, because they pile up. Only a process that writes the object removes anything.
//
// A part is removed if it existed before a CompareAndSwap of this process began that succeeded, and
// was not named by the root then. No other writer can name it any more: one that started from a
// former version fails, and one that starts from a later version creates parts of its own.
func (s *Store) Collect(ctx context.Context, now time.Time) error {
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	if last.began.IsZero() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, blobTimeout)
	defer cancel()
	s.garbage.mu.Lock()
	defer s.garbage.mu.Unlock()
	if err := errors.Join(s.collectParts(ctx, last), s.collectModules(ctx, now)); err != nil {
		return fmt.Errorf("%s: blobs that are no longer used are not removed: %w", s.backend, err)
	}
	return nil
}

func (s *Store) collectParts(ctx context.Context, last swap) error {
	g := &s.garbage
	var err error
	if last.began.After(g.listed) {
		for _, set := range g.unnamed {
			if !last.named[set.names[0]] {
				err = errors.Join(err, s.removeSets(ctx, Parts, set))
			}
		}
		g.unnamed = nil
	}
	sets, e := s.listSets(ctx, Parts)
	if e != nil {
		return errors.Join(err, e)
	}
	kept, e := s.namedByCorrupt(ctx)
	if e != nil {
		return errors.Join(err, e)
	}
	exist := make(map[string]bool)
	g.unnamed, g.listed = nil, time.Now()
	for _, set := range sets {
		for _, name := range set.names {
			exist[name] = true
		}
		if !last.named[set.names[0]] && !kept[set.names[0]] {
			g.unnamed = append(g.unnamed, set)
		}
	}
	for name := range last.named {
		if !exist[name] {
			s.forget(last)
		}
	}
	return err
}

// namedByCorrupt returns the parts that unreadable roots name, as far as that can be seen.
func (s *Store) namedByCorrupt(ctx context.Context) (map[string]bool, error) {
	names, err := s.backend.ListBlobs(ctx, Corrupt)
	kept := make(map[string]bool)
	for _, name := range names {
		data, e := s.backend.ReadBlob(ctx, Corrupt, name)
		if e != nil && !errors.Is(e, ErrNoBlob) {
			return nil, e
		}
		if root, e := decodeRoot(data); e == nil {
			for name := range root.names() {
				kept[name] = true
			}
		}
	}
	return kept, err
}

// forget makes the next write store the plan anew, after a part of it was removed by hand. Nothing
// is lost, because the caller of CompareAndSwap has it.
func (s *Store) forget(last swap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last.began.Equal(last.began) {
		s.known.root.Plan = part{}
	}
}

// collectModules removes the modules that the stored object has not named for ModuleGrace, those
// whose PutModule was interrupted, and all but one copy of those that were put again.
func (s *Store) collectModules(ctx context.Context, now time.Time) error {
	sets, err := s.listSets(ctx, Modules)
	if err != nil || len(sets) == 0 {
		return err
	}
	got, err := s.read(ctx, content{})
	if err != nil {
		return err
	}
	named := make(map[lifecycle.Digest]bool)
	for _, slot := range got.plan.Slots {
		for _, sum := range slot.Digests() {
			named[sum] = true
		}
	}
	found := make(map[string]time.Time)
	for _, set := range sets {
		sum, ok := moduleOf(set)
		if !ok {
			continue // not written by this program
		}
		if named[sum] && set.isComplete() {
			delete(named, sum) // another copy is not needed
			continue
		}
		since, ok := s.garbage.modules[set.id]
		if !ok {
			since = now
		}
		found[set.id] = since
		if now.Sub(since) >= ModuleGrace {
			err = errors.Join(err, s.removeSets(ctx, Modules, set))
		}
	}
	s.garbage.modules = found
	return err
}
