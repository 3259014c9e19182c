package kubernetes

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/cascadeinfer/cascade/xds/internal/remotestore"
	"github.com/cascadeinfer/cascade/xds/store"
)

const (
	// pollInterval is the time between two reads of a watch without an event: a watch that
	// hangs delivers nothing and reports nothing.
	pollInterval = time.Second
	// watchTime is how long one watch of the API lasts, in seconds.
	watchTime = 300
	// collectInterval is the time between two searches for ConfigMaps that the root does not
	// name, collectTick between two looks whether it is time.
	collectInterval = time.Minute
	collectTick     = 5 * time.Second
)

// Watch implements store.Store. Events of the API server only say when to read: a read asks
// etcd, whatever the watch has missed.
func (s *Store) Watch(ctx context.Context) <-chan store.Update {
	updates := make(chan store.Update)
	go func() {
		defer close(updates)
		changed := make(chan struct{}, 1)
		var others sync.WaitGroup
		defer others.Wait()
		others.Go(func() { s.followEvents(ctx, changed) })
		others.Go(func() { s.collect(ctx) })
		s.watch(ctx, changed, updates)
	}()
	return updates
}

// watch sends what is stored whenever it differs from what was sent last, until ctx ends.
func (s *Store) watch(ctx context.Context, changed <-chan struct{}, updates chan<- store.Update) {
	var have content
	remotestore.Follow(ctx, changed, pollInterval, updates, func(ctx context.Context) (store.Version, error) {
		got, err := s.read(ctx, have)
		if err == nil {
			have = got
		}
		return store.Version(have.version()), err
	}, func() store.Object { return have.object() })
}

// followEvents signals in changed that the Lease may have changed, until ctx ends. A watch that
// is cut, or whose resourceVersion has expired (410 Gone), is followed by another one, which
// begins with the present: its first event has the Lease as it is.
func (s *Store) followEvents(ctx context.Context, changed chan<- struct{}) {
	for ctx.Err() == nil {
		s.followOne(ctx, changed)
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
		}
	}
}

// followOne signals the events of one watch until it ends.
func (s *Store) followOne(ctx context.Context, changed chan<- struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	options := metav1.ListOptions{Watch: true, FieldSelector: "metadata.name=" + s.c.name, TimeoutSeconds: new(int64(watchTime))}
	w, err := s.c.coordination.Get().Namespace(s.c.namespace).Resource(leases).VersionedParams(&options, s.c.params).Watch(ctx)
	if err != nil {
		return
	}
	defer w.Stop()
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok || e.Type == watch.Error {
				return
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		case <-ctx.Done():
			return
		}
	}
}

// collect removes the ConfigMaps that the root does not name, until ctx ends: those of former
// documents, and those of writers that have lost a race or died. Only a control plane that
// writes does it.
func (s *Store) collect(ctx context.Context) {
	tick := time.NewTicker(collectTick)
	defer tick.Stop()
	var g collector
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_ = s.collectStep(ctx, &g, time.Now()) // what fails is tried again
		}
	}
}

// collector is the state of a collection. A ConfigMap is removed if it existed before a
// CompareAndSwap of this process began that succeeded, and was not named by the root then. No
// other writer can name it any more: one that started from a former version will fail, and one
// that starts from a later version creates ConfigMaps of its own.
type collector struct {
	searched time.Time // when the last search began; zero: there was none
	listed   time.Time // when it ended, by the monotonic clock
	unnamed  []string
}

// collectStep searches if it is time to, or removes what the last search has found if that is safe.
func (s *Store) collectStep(ctx context.Context, g *collector, now time.Time) error {
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	switch {
	case last.began.IsZero():
		return nil
	case len(g.unnamed) > 0 && last.began.After(g.listed):
		for len(g.unnamed) > 0 {
			if name := g.unnamed[0]; !slices.Contains(last.named, name) {
				if err := s.c.deleteConfigMap(ctx, name, ""); err != nil {
					return err
				}
			}
			g.unnamed = g.unnamed[1:]
		}
		return nil
	case now.Sub(g.searched) < collectInterval:
		return nil
	}
	g.searched, g.unnamed = now, nil
	exist := make(map[string]bool)
	for _, kind := range []string{planKind, stateKind} {
		all, err := s.c.listConfigMaps(ctx, kind, "")
		if err != nil {
			return err
		}
		for _, object := range all {
			exist[object.Name] = true
		}
	}
	for _, name := range last.named {
		if !exist[name] {
			s.forget(last)
		}
		delete(exist, name)
	}
	g.unnamed, g.listed = slices.Sorted(maps.Keys(exist)), time.Now()
	return nil
}

// forget makes the next write store the plan anew, after a part of it was removed by hand. Nothing
// is lost, because this process has it.
func (s *Store) forget(last swap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last.began.Equal(last.began) {
		s.known.sum = [len(s.known.sum)]byte{}
	}
}
