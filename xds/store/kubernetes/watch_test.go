package kubernetes_test

import (
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
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
	s, watched := store.New(a.open(t, name)), store.New(a.through(link).open(t, name))
	storetest.RunWatchCut(t, s, watched, link, []func(){server.EndWatches, server.ExpireWatches, link.Cut}, func() {
		testkit.WaitFor(t, "the watch is there again", func() bool { return server.Watches() == 1 })
	})
}
