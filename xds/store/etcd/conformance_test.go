package etcd_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/policies/testkit"
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
	c, err := etcd.New(etcd.Config{Endpoints: endpoints, Prefix: prefix})
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, c.Close()) })
	return c
}

// TestConformance runs the suites of stores on a real etcd.
func TestConformance(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.Config{})
	t.Run("plan", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) func() store.Store {
			prefix := newPrefix()
			return func() store.Store { return open(t, prefix, cluster.Endpoints()...).Plan() }
		})
	})
	for _, name := range []string{"plan", "state"} {
		t.Run("unreadable "+name, func(t *testing.T) {
			prefix, raw := newPrefix(), cluster.Client()
			key := prefix + "/" + name
			var good string
			storetest.RunUnreadable(t, open(t, prefix, cluster.Endpoints()...).Plan(), func() {
				r, err := raw.Get(t.Context(), key)
				testkit.NoError(t, err)
				good = string(r.Kvs[0].Value)
				_, err = raw.Put(t.Context(), key, good[:len(good)/2])
				testkit.NoError(t, err)
			}, func() {
				_, err := raw.Put(t.Context(), key, good)
				testkit.NoError(t, err)
			})
		})
	}
	t.Run("modules", func(t *testing.T) {
		m := open(t, newPrefix(), cluster.Endpoints()...).Modules()
		storetest.RunModules(t, m)
		storetest.RunLargeModule(t, m, store.MaxModule)
	})
	t.Run("notes", func(t *testing.T) {
		storetest.RunNotes(t, open(t, newPrefix(), cluster.Endpoints()...).Notes("planes"))
	})
	t.Run("values", func(t *testing.T) { testValues(t, open(t, newPrefix(), cluster.Endpoints()...)) })
	for name, test := range map[string]func(*testing.T, *etcdtest.Cluster){
		"renewals write no plan": testRenewal, "large": testLarge, "collected": testCollected, "set aside": testSetAside,
		"compacted": testCompacted, "watch cut": testWatchCut, "lost answer": testLostAnswer,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, cluster)
		})
	}
}

// testValues checks counters and secrets.
func testValues(t *testing.T, c *etcd.Client) {
	for _, size := range []int{0, 10, 3 << 20} {
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(rand.Uint32())
		}
		testkit.NoError(t, c.Counters("a/b").Save(data)) // a new process: nothing is skipped
		got, err := c.Counters("a/b").Load()
		testkit.NoError(t, err)
		if !slices.Equal(got, data) {
			t.Errorf("counters of %d bytes come back as %d", len(data), len(got))
		}
	}
	testkit.NoError(t, c.Counters("a/b").Save([]byte("short"))) // after a long one
	if got, err := c.Counters("a/b").Load(); err != nil || string(got) != "short" {
		t.Errorf("counters %q, %v", got, err)
	}
	if got, err := c.Counters("b").Load(); err != nil || got != nil {
		t.Errorf("counters that were never saved: %q, %v", got, err)
	}
	for _, mine := range []string{"first", "second"} {
		if got, err := c.CreateOnce(t.Context(), "s", []byte(mine)); err != nil || string(got) != "first" {
			t.Errorf("secret %q, %v", got, err)
		}
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
	u := <-storetest.Follow(t, c.Plan()).Updates
	if !errors.Is(u.Err, store.ErrUnavailable) || !strings.Contains(u.Err.Error(), "127.0.0.1:1: read the plan") || !strings.Contains(u.Err.Error(), "refused") {
		t.Errorf("no etcd: %v", u.Err)
	}
}
