package kubernetes_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/xds/etcdtest"
	"github.com/cascadeinfer/cascade/xds/internal/storetest"
	"github.com/cascadeinfer/cascade/xds/kubetest"
	"github.com/cascadeinfer/cascade/xds/store"
	"github.com/cascadeinfer/cascade/xds/store/kubernetes"
)

// follower is a watch.
type follower struct {
	t  *testing.T
	ch <-chan store.Update
}

func follow(t *testing.T, s *kubernetes.Store) *follower {
	ctx, cancel := context.WithCancel(context.Background())
	f := &follower{t: t, ch: s.Watch(ctx)}
	t.Cleanup(func() {
		cancel()
		for range f.ch {
		}
	})
	return f
}

// await receives until an epoch comes.
func (f *follower) await(epoch policies.Epoch) {
	f.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case u := <-f.ch:
			if u.Err == nil && u.Object.Epoch == epoch {
				return
			}
		case <-deadline:
			f.t.Fatalf("epoch %d has not arrived", epoch)
		}
	}
}

// awaitError receives until an error comes, and returns it.
func (f *follower) awaitError() error {
	f.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case u := <-f.ch:
			if u.Err != nil {
				return u.Err
			}
		case <-deadline:
			f.t.Fatal("no error has arrived")
		}
	}
}

// TestWatch ends watches, expires what they need, and lets one hang.
func TestWatch(t *testing.T) {
	t.Parallel()
	server := kubetest.Simulate(t)
	a := simulated(server)
	link := etcdtest.NewLink(t, strings.TrimPrefix(server.URL, "http://"))
	c := a.open(t, newName())
	s, f := c.Plan(), follow(t, a.through(link).open(t, c.Name()).Plan())
	v, epoch := store.Version(""), policies.Epoch(0)
	swap := func() {
		t.Helper()
		epoch++
		var err error
		v, err = s.CompareAndSwap(t.Context(), v, storetest.Object(epoch))
		testkit.NoError(t, err)
		f.await(epoch)
	}
	resumed := func() {
		t.Helper()
		testkit.WaitFor(t, "the watch is there again", func() bool { return server.Watches() == 1 })
	}
	resumed()
	swap()
	for _, cut := range []func(){server.EndWatches, server.ExpireWatches, link.Cut} {
		cut()
		swap()
		resumed()
	}
	link.Partition()
	if err := f.awaitError(); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "no answer in time") {
		t.Errorf("the error of a partition is %v", err)
	}
	link.Heal()
	f.await(epoch)
	swap()
}
