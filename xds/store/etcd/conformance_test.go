package etcd_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/etcdtest"
	"github.com/cascadeinfer/cascade/xds/internal/storetest"
	"github.com/cascadeinfer/cascade/xds/store"
	"github.com/cascadeinfer/cascade/xds/store/etcd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// prefixes counts the prefixes of this process, so that each test has one of its own.
var prefixes atomic.Int64

func newPrefix() string { return fmt.Sprintf("/test/%d", prefixes.Add(1)) }

// open returns a client that is closed when the test ends.
func open(t testing.TB, prefix string, endpoints ...string) *etcd.Client {
	t.Helper()
	c := testkit.Must(etcd.New(etcd.Config{Endpoints: endpoints, Prefix: prefix}))
	t.Cleanup(func() { testkit.NoError(t, c.Close()) })
	return c
}

// TestConformance runs the suites of stores on a real etcd.
func TestConformance(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.Config{})
	t.Run("suite", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) func() store.Backend {
			prefix := newPrefix()
			return func() store.Backend { return open(t, prefix, cluster.Endpoints()...) }
		})
	})
	for name, test := range map[string]func(*testing.T, *etcdtest.Cluster){
		"compacted": testCompacted, "watch cut": testWatchCut, "lost answer": testLostAnswer,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, cluster)
		})
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for _, c := range []etcd.Config{
		{Prefix: "/a"},
		{Endpoints: []string{"host"}, Prefix: "/a"},
		{Endpoints: []string{"host:1"}},
		{Endpoints: []string{"host:1"}, Prefix: "/a/"},
		{Endpoints: []string{"host:1"}, Prefix: "/a", User: "u"},
	} {
		if _, err := etcd.New(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	c := open(t, "/a", "127.0.0.1:1")
	u := storetest.Read(t, store.New(c))
	if !errors.Is(u.Err, store.ErrUnavailable) || !strings.Contains(u.Err.Error(), "127.0.0.1:1: read the plan") || !strings.Contains(u.Err.Error(), "refused") {
		t.Errorf("no etcd: %v", u.Err)
	}
}
