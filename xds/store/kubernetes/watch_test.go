package kubernetes_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/etcdtest"
	"github.com/cascadeinfer/cascade/xds/internal/storetest"
	"github.com/cascadeinfer/cascade/xds/kubetest"
	"github.com/cascadeinfer/cascade/xds/store"
)

// TestWatch ends watches, expires what they need, and lets one hang.
func TestWatch(t *testing.T) {
	t.Parallel()
	server := kubetest.Simulate(t)
	a := simulated(server)
	link := etcdtest.NewLink(t, strings.TrimPrefix(server.URL, "http://"))
	name := newName()
	s, f := store.New(a.open(t, name)), storetest.Follow(t, store.New(a.through(link).open(t, name)))
	v, epoch := store.Version(""), policies.Epoch(0)
	swap := func() {
		t.Helper()
		epoch++
		var err error
		v, err = s.CompareAndSwap(t.Context(), v, storetest.Object(epoch))
		testkit.NoError(t, err)
		f.Await(epoch)
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
	if err := f.AwaitError(); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "no answer in time") {
		t.Errorf("the error of a partition is %v", err)
	}
	link.Heal()
	f.Await(epoch)
	swap()
}
