package kubernetes_test

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/client-go/rest"

	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/xds/etcdtest"
	"github.com/cascadeinfer/cascade/xds/internal/storetest"
	"github.com/cascadeinfer/cascade/xds/kubetest"
	"github.com/cascadeinfer/cascade/xds/store"
	"github.com/cascadeinfer/cascade/xds/store/kubernetes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// names counts the names of this process, so that each test has one of its own.
var names atomic.Int64

func newName() string { return fmt.Sprint("fleet-", names.Add(1)) }

// api is an API server.
type api struct {
	host      string // URL
	rest      rest.Config
	namespace string // "" is default
}

// simulated returns the API server in memory.
func simulated(s *kubetest.Simulated) api { return api{host: s.URL} }

// open returns a client that is closed when the test ends.
func (a api) open(t testing.TB, name string) *kubernetes.Client {
	t.Helper()
	config := a.rest
	config.Host = a.host
	c, err := kubernetes.New(kubernetes.Config{REST: &config, Namespace: cmp.Or(a.namespace, "default"), Name: name})
	testkit.NoError(t, err)
	t.Cleanup(func() { testkit.NoError(t, c.Close()) })
	return c
}

// through returns the API server behind a link.
func (a api) through(link *etcdtest.Link) api {
	scheme, _, _ := strings.Cut(a.host, "://")
	a.host = scheme + "://" + link.Endpoint
	return a
}

// TestConformance runs the suites of stores on the API in memory.
func TestConformance(t *testing.T) {
	t.Parallel()
	testConformance(t, simulated(kubetest.Simulate(t)))
}

// testConformance runs all suites that need no more than an API server.
func testConformance(t *testing.T, a api) {
	t.Run("plan", func(t *testing.T) {
		storetest.Run(t, func(t *testing.T) func() store.Store {
			name := newName()
			return func() store.Store { return a.open(t, name).Plan() }
		})
	})
	for _, annotation := range []string{"cascade/plan", "cascade/state"} {
		t.Run("unreadable "+annotation, func(t *testing.T) {
			c := a.open(t, newName())
			good := ""
			set := func(text string) {
				testkit.NoError(t, c.EditLease(t.Context(), func(all map[string]string) { good, all[annotation] = all[annotation], text }))
			}
			storetest.RunUnreadable(t, c.Plan(), func() { set("broken") }, func() { set(good) })
		})
	}
	t.Run("modules", func(t *testing.T) { testModules(t, a.open(t, newName())) })
	t.Run("notes", func(t *testing.T) {
		storetest.RunNotes(t, a.open(t, newName()).Notes("planes"))
		testNoteLifetime(t, a.open(t, newName()))
	})
	t.Run("values", func(t *testing.T) { testValues(t, a.open(t, newName())) })
	for name, test := range map[string]func(*testing.T, api){
		"renewals write no plan": testRenewal, "large": testLarge, "collected": testCollected, "removed by hand": testRemoved, "set aside": testSetAside,
	} {
		t.Run(name, func(t *testing.T) { test(t, a) })
	}
}

func testModules(t *testing.T, c *kubernetes.Client) {
	m := c.Modules()
	storetest.RunModules(t, m)
	large, sum := storetest.RunLargeModule(t, m, 2_000_000) // three parts
	parts, err := c.ConfigMaps(t.Context(), "module")
	testkit.NoError(t, err)
	parts = slices.DeleteFunc(parts, func(name string) bool { return !strings.Contains(name, hex.EncodeToString(sum[:])) })
	testkit.NoError(t, c.DeleteConfigMap(t.Context(), slices.Max(parts)))
	if _, err := m.Get(sum); !errors.Is(err, store.ErrNoModule) {
		t.Errorf("a module without its last part: %v", err)
	}
	testkit.NoError(t, m.Put(sum, large))
	if _, err := m.Get(sum); err != nil {
		t.Errorf("after it was put again: %v", err)
	}
	// A Sweep that found the module unused does not remove it after it was put again.
	later := time.Now().Add(time.Hour)
	testkit.NoError(t, m.Sweep(nil, time.Now().Add(-time.Hour)))
	testkit.NoError(t, m.Put(sum, large))
	testkit.NoError(t, m.Sweep(nil, time.Now().Add(-time.Hour)))
	if _, err := m.Get(sum); err != nil {
		t.Errorf("after a sweep that began before it was put: %v", err)
	}
	testkit.NoError(t, m.Sweep(nil, later))
	if left, err := c.ConfigMaps(t.Context(), "module"); err != nil || len(left) > 0 {
		t.Errorf("after a sweep of all there are %q, %v", left, err)
	}
}

// testNoteLifetime checks that a note is removed when it was not written for an hour.
func testNoteLifetime(t *testing.T, c *kubernetes.Client) {
	n, now := c.Notes("planes"), time.Now()
	read := func(at time.Time) int {
		t.Helper()
		all, err := n.ReadNotes(t.Context(), at)
		testkit.NoError(t, err)
		return len(all)
	}
	testkit.NoError(t, n.Put("a", []byte("old")))
	testkit.NoError(t, n.Put("b", []byte("old")))
	if got := read(now); got != 2 {
		t.Errorf("%d notes, want 2", got)
	}
	testkit.NoError(t, n.Put("b", []byte("new")))
	read(now.Add(store.NoteLifetime / 2))
	if got := read(now.Add(store.NoteLifetime)); got != 1 {
		t.Errorf("%d notes after an hour, want 1", got)
	}
	if left, err := c.ConfigMaps(t.Context(), "note"); err != nil || len(left) != 1 {
		t.Errorf("stored are %q, %v", left, err)
	}
}

// testValues checks counters and secrets.
func testValues(t *testing.T, c *kubernetes.Client) {
	for _, size := range []int{0, 10, 2_000_000, 900_000} {
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
	if stored, err := c.ConfigMaps(t.Context(), "counters"); err != nil || len(stored) != 2 {
		t.Errorf("counters of 900,000 bytes are in %q, %v", stored, err)
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
