package etcd

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cascadeinfer/cascade/xds/internal/remotestore"
	"github.com/cascadeinfer/cascade/xds/store"
)

const (
	// pollInterval is the time between two reads of a watch without an event: a watch of
	// etcd that hangs, or resumes for ever, delivers nothing and reports nothing.
	pollInterval = time.Second
	// collectInterval is the time between two searches for chunks that no document names,
	// collectAge how long such chunks stay.
	collectInterval = time.Minute
	collectAge      = time.Minute
)

func isCompacted(err error) bool { return isAny(err, rpctypes.ErrCompacted) }

// Watch implements store.Store. Events of etcd only say when to read: a read is linearizable
// and sees both documents at one revision, whatever the watch has missed.
func (s *Store) Watch(ctx context.Context) <-chan store.Update {
	updates := make(chan store.Update)
	go func() {
		defer close(updates)
		changed, ended := make(chan struct{}, 1), make(chan struct{})
		go func() {
			defer close(ended)
			s.followEvents(ctx, changed)
		}()
		s.watch(ctx, changed, updates)
		<-ended
	}()
	return updates
}

// watch sends what is stored whenever it differs from what was sent last, until ctx ends.
func (s *Store) watch(ctx context.Context, changed <-chan struct{}, updates chan<- store.Update) {
	var have content
	garbage := collector{c: s.c, at: time.Now()}
	remotestore.Follow(ctx, changed, pollInterval, updates, func(ctx context.Context) (store.Version, error) {
		got, err := s.read(ctx, have)
		if err == nil && ctx.Err() == nil {
			have = got
			garbage.collect(ctx, have.version)
		}
		return store.Version(have.String()), err
	}, func() store.Object { return have.object() })
}

// followEvents signals in changed that a document may have changed, until ctx ends. Every
// write changes the state; an operator's edit of the plan is found by the next poll.
//
// The client of etcd resumes a watch that is cut at the revision that it has reached. When
// that was compacted meanwhile, or the member has no leader, the watch ends, and another one
// begins with the present: its first event is that it was created.
func (s *Store) followEvents(ctx context.Context, changed chan<- struct{}) {
	for ctx.Err() == nil {
		if conn, err := s.c.connect(ctx); err == nil {
			s.followOne(ctx, conn, changed)
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
		}
	}
}

// followOne signals the events of one watch until it ends.
func (s *Store) followOne(ctx context.Context, conn *clientv3.Client, changed chan<- struct{}) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for r := range conn.Watch(ctx, s.c.key(stateName), clientv3.WithCreatedNotify(), clientv3.WithFragment()) {
		if r.Err() != nil {
			return
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

// collector removes chunks that no document names: those of former documents, and those of
// writers that have lost a race or died.
type collector struct {
	c    *Client
	at   time.Time            // of the last search
	seen map[string]time.Time // when a set of chunks was first found unnamed, by its hash and newest revision
}

// collect searches if it is time to. What fails is tried again at the next time.
func (g *collector) collect(ctx context.Context, v version) {
	now := time.Now()
	if now.Sub(g.at) < collectInterval {
		return
	}
	g.at = now
	_ = g.search(ctx, now, v)
}

func (g *collector) search(ctx context.Context, now time.Time, v version) error {
	named, err := g.named(ctx, v)
	if err != nil {
		return err
	}
	sets, err := g.c.listSets(ctx, "chunks")
	if err != nil {
		return err
	}
	seen := make(map[string]time.Time)
	for sum, set := range sets {
		if named[sum] {
			continue
		}
		id := set.id(sum)
		since, ok := g.seen[id]
		if !ok {
			since = now
		}
		seen[id] = since
		if now.Sub(since) < collectAge {
			continue
		}
		// A document that names them has another revision.
		unchanged := []clientv3.Cmp{
			clientv3.Compare(clientv3.ModRevision(g.c.key(planName)), "=", v.plan),
			clientv3.Compare(clientv3.ModRevision(g.c.key(stateName)), "=", v.state),
		}
		if _, err := g.c.removeSet(ctx, "chunks", sum, set, unchanged); err != nil {
			return err
		}
	}
	g.seen = seen
	return nil
}

// named returns the hashes of the chunked documents of a version.
func (g *collector) named(ctx context.Context, v version) (map[string]bool, error) {
	out := make(map[string]bool)
	for name, revision := range map[string]int64{planName: v.plan, stateName: v.state} {
		if revision == 0 {
			continue
		}
		// Not at its revision, which may be compacted: a newer document makes the removal fail.
		value, err := g.c.getAt(ctx, g.c.key(name), 0)
		if err != nil {
			return nil, err
		}
		if at, err := parsePointer(value); err == nil && at != nil {
			out[at.SHA256] = true
		}
	}
	return out, nil
}
