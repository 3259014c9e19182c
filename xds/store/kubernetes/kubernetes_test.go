package kubernetes_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/client-go/rest"

	"github.com/cascadeinfer/cascade/policies"
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
	large := make([]byte, 2_000_000) // three parts
	for i := range large {
		large[i] = byte(rand.Uint32())
	}
	sum := sha256.Sum256(large)
	testkit.NoError(t, m.Put(sum, large))
	got, err := m.Get(sum)
	testkit.NoError(t, err)
	if !slices.Equal(got, large) {
		t.Error("a module of three parts comes back changed")
	}
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

// testRenewal checks that a write that changes only the lease stores no plan, and that the
// Lease says who leads.
func testRenewal(t *testing.T, a api) {
	c := a.open(t, newName())
	s := c.Plan()
	o := storetest.Object(1)
	v, err := s.CompareAndSwap(t.Context(), "", o)
	testkit.NoError(t, err)
	expect := func(plans int, holder string, changes int32) {
		t.Helper()
		stored, err := c.ConfigMaps(t.Context(), "plan")
		testkit.NoError(t, err)
		lease, err := c.Lease(t.Context())
		testkit.NoError(t, err)
		if len(stored) != plans || *lease.Spec.HolderIdentity != holder || *lease.Spec.LeaseTransitions != changes {
			t.Errorf("%d plans, held by %s after %d changes, want %d, %s and %d", len(stored), *lease.Spec.HolderIdentity, *lease.Spec.LeaseTransitions, plans, holder, changes)
		}
	}
	for range 3 {
		o.Lease.Expires = o.Lease.Expires.Add(time.Second)
		v, err = s.CompareAndSwap(t.Context(), v, o)
		testkit.NoError(t, err)
	}
	expect(1, "cp-1", 0)
	// Also after another process has read it.
	other := a.open(t, c.Name()).Plan()
	u := <-follow(t, other).ch
	o.Lease.Holder = "cp-2"
	v, err = other.CompareAndSwap(t.Context(), u.Version, o)
	testkit.NoError(t, err)
	expect(1, "cp-2", 1)
	o.Drained = nil
	_, err = other.CompareAndSwap(t.Context(), v, o)
	testkit.NoError(t, err)
	expect(2, "cp-2", 1)
}

// largeObject returns an object whose plan has several parts, and whose state does not fit into
// an annotation.
func largeObject(name string) store.Object {
	o := storetest.LargeObject(14_000)
	o.Plans[0].Model = name
	for _, id := range o.Plans[0].Stages[0].Replicas {
		o.Weights = append(o.Weights, store.Weight{Replica: id, Weight: 7})
	}
	return o
}

// documents returns the names of the ConfigMaps of plans and states.
func documents(t *testing.T, c *kubernetes.Client) []string {
	t.Helper()
	plans, err := c.ConfigMaps(t.Context(), "plan")
	testkit.NoError(t, err)
	states, err := c.ConfigMaps(t.Context(), "state")
	testkit.NoError(t, err)
	return append(plans, states...)
}

// testLarge stores objects that do not fit into a ConfigMap, and checks that the parts of the
// former ones are removed.
func testLarge(t *testing.T, a api) {
	c := a.open(t, newName())
	s := c.Plan()
	v := store.Version("")
	var first []string
	var g kubernetes.Collector
	for i := range 2 {
		o := largeObject(fmt.Sprint("m", i))
		var err error
		v, err = s.CompareAndSwap(t.Context(), v, o)
		testkit.NoError(t, err)
		got, err := a.open(t, c.Name()).Plan().Read(t.Context())
		testkit.NoError(t, err)
		if !reflect.DeepEqual(got, o) {
			t.Fatal("a large object comes back changed")
		}
		if i == 0 {
			first = documents(t, c)
		}
	}
	before := documents(t, c)
	if len(before) != 2*len(first) || len(first) < 3 {
		t.Fatalf("two large objects are stored in %q, and one in %q", before, first)
	}
	now := time.Now()
	testkit.NoError(t, s.Collect(t.Context(), &g, now))
	testkit.NoError(t, s.Collect(t.Context(), &g, now.Add(kubernetes.CollectInterval-1)))
	if left := documents(t, c); len(left) != len(before) {
		t.Errorf("%d of %d are left although nothing was written since", len(left), len(before))
	}
	renewed := largeObject("m1")
	renewed.Lease = store.Lease{Holder: "a", Expires: now}
	_, err := s.CompareAndSwap(t.Context(), v, renewed)
	testkit.NoError(t, err)
	testkit.NoError(t, s.Collect(t.Context(), &g, now.Add(1)))
	left := documents(t, c)
	if slices.ContainsFunc(left, func(name string) bool { return slices.Contains(first, name) }) {
		t.Errorf("of %q, which nothing names, there are %q left", first, left)
	}
	if _, err := a.open(t, c.Name()).Plan().Read(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := s.CompareAndSwap(t.Context(), v, storetest.LargeObject(200_000)); err == nil || !strings.Contains(err.Error(), "at most 8388608 are allowed") {
		t.Errorf("stored an object beyond the limit: %v", err)
	}
}

// testCollected collects between the two halves of a write of another control plane, which then
// either is refused, or has stored what can be read.
func testCollected(t *testing.T, a api) {
	for _, overtaken := range []bool{false, true} {
		c := a.open(t, newName())
		s, slow := c.Plan(), a.open(t, c.Name()).Plan()
		v, err := s.CompareAndSwap(t.Context(), "", storetest.Object(1))
		testkit.NoError(t, err)
		slow.BeforeWrite(func() {
			var g kubernetes.Collector
			now := time.Now()
			testkit.NoError(t, s.Collect(t.Context(), &g, now))
			if overtaken {
				_, err := s.CompareAndSwap(t.Context(), v, storetest.Object(2))
				testkit.NoError(t, err)
			}
			testkit.NoError(t, s.Collect(t.Context(), &g, now.Add(1)))
		})
		_, err = slow.CompareAndSwap(t.Context(), v, storetest.Object(3))
		if overtaken != errors.Is(err, store.ErrConflict) || !overtaken && err != nil {
			t.Errorf("overtaken %v: %v", overtaken, err)
		}
		got, err := a.open(t, c.Name()).Plan().Read(t.Context())
		if want := map[bool]policies.Epoch{false: 3, true: 2}[overtaken]; err != nil || got.Epoch != want {
			t.Errorf("overtaken %v: stored is epoch %d, %v, want %d", overtaken, got.Epoch, err, want)
		}
		// When overtaken, the plan of the slow writer was removed.
		if left := documents(t, c); len(left) != 2 {
			t.Errorf("overtaken %v: %q are left, want two plans", overtaken, left)
		}
	}
}

// testRemoved removes a plan's ConfigMap: the control plane that writes has it still, and stores
// it again.
func testRemoved(t *testing.T, a api) {
	c := a.open(t, newName())
	s := c.Plan()
	o := storetest.Object(1)
	v, err := s.CompareAndSwap(t.Context(), "", o)
	testkit.NoError(t, err)
	for _, name := range documents(t, c) {
		testkit.NoError(t, c.DeleteConfigMap(t.Context(), name))
	}
	fresh := a.open(t, c.Name()).Plan()
	if _, err := fresh.Read(t.Context()); err == nil || errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), c.Name()+"-plan-") {
		t.Errorf("a plan without its ConfigMap: %v", err)
	}
	testkit.NoError(t, s.Collect(t.Context(), &kubernetes.Collector{}, time.Now()))
	_, err = s.CompareAndSwap(t.Context(), v, o)
	testkit.NoError(t, err)
	if got, err := fresh.Read(t.Context()); err != nil || got.Epoch != 1 {
		t.Errorf("after the next write: epoch %d, %v", got.Epoch, err)
	}
}

func testSetAside(t *testing.T, a api) {
	c := a.open(t, newName())
	s := c.Plan()
	if name, err := s.SetAside(t.Context(), time.Now()); name != "" || err != nil {
		t.Errorf("nothing is stored: %q, %v", name, err)
	}
	_, err := s.CompareAndSwap(t.Context(), "", storetest.Object(1))
	testkit.NoError(t, err)
	damaged := ""
	testkit.NoError(t, c.EditLease(t.Context(), func(all map[string]string) {
		at := strings.Index(all["cascade/plan"], `"sha256":"`) + len(`"sha256":"`)
		damaged = all["cascade/plan"][:at] + strings.Repeat("0", 64) + all["cascade/plan"][at+64:]
		all["cascade/plan"] = damaged
	}))
	if _, err := s.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "another hash") {
		t.Errorf("a plan with another hash: %v", err)
	}
	name, err := s.SetAside(t.Context(), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	testkit.NoError(t, err)
	lease, err := c.Lease(t.Context())
	testkit.NoError(t, err)
	if name != "cascade/corrupt-20260102T030405Z" || lease.Annotations[name] != damaged {
		t.Errorf("%s: %v", name, lease.Annotations)
	}
	kept := documents(t, c)
	v, err := s.CompareAndSwap(t.Context(), "", storetest.Object(2))
	testkit.NoError(t, err)
	var g kubernetes.Collector
	testkit.NoError(t, s.Collect(t.Context(), &g, time.Now()))
	_, err = s.CompareAndSwap(t.Context(), v, storetest.Object(2))
	testkit.NoError(t, err)
	testkit.NoError(t, s.Collect(t.Context(), &g, time.Now()))
	if left := documents(t, c); len(kept) != 1 || !slices.Contains(left, kept[0]) {
		t.Errorf("of %q, which were set aside, there are %q left", kept, left)
	}
	testkit.NoError(t, c.EditLease(t.Context(), func(all map[string]string) { all["cascade/state"] = "broken" }))
	if _, err := s.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "annotation cascade/state") {
		t.Errorf("a broken state: %v", err)
	}
	name, err = s.SetAside(t.Context(), time.Now())
	testkit.NoError(t, err)
	if got, err := s.Read(t.Context()); err != nil || name != "" || got.Epoch != 2 || got.Lease != (store.Lease{}) {
		t.Errorf("after the state was set aside as %q: epoch %d, lease %v, %v", name, got.Epoch, got.Lease, err)
	}
}

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

// TestLostAnswers loses the answers of requests that were executed: the write succeeds, and is
// made once.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	server := kubetest.Simulate(t)
	s := simulated(server).open(t, newName()).Plan()
	var lost atomic.Int64
	server.LoseAnswers(func(r *http.Request) bool { return r.Method != http.MethodGet && lost.Add(1)%2 == 1 }) // the first of two
	v := store.Version("")
	for e := policies.Epoch(1); e <= 3; e++ {
		var err error
		if v, err = s.CompareAndSwap(t.Context(), v, storetest.Object(e)); err != nil {
			t.Fatal(err)
		}
	}
	if lost.Load() != 12 { // three times a ConfigMap and the Lease, twice each
		t.Errorf("%d requests", lost.Load())
	}
	server.LoseAnswers(nil)
	if u := <-follow(t, s).ch; u.Err != nil || u.Version != v || u.Object.Epoch != 3 {
		t.Errorf("stored is epoch %d, version %q, %v, want 3, %q", u.Object.Epoch, u.Version, u.Err, v)
	}
	if stored := server.Paths("-plan-"); len(stored) != 3 {
		t.Errorf("stored are %q", stored)
	}
}

// TestReplacedWhileRead replaces the plan, and removes the former one, between the two requests of
// a read, which then returns the new one.
func TestReplacedWhileRead(t *testing.T) {
	t.Parallel()
	server := kubetest.Simulate(t)
	c := simulated(server).open(t, newName())
	s, reader := c.Plan(), simulated(server).open(t, c.Name()).Plan()
	v, err := s.CompareAndSwap(t.Context(), "", storetest.Object(1))
	testkit.NoError(t, err)
	former := server.Paths("-plan-")[0]
	var once sync.Once
	server.Before(func(r *http.Request) int {
		if r.Method == http.MethodGet && r.URL.Path == former {
			once.Do(func() {
				_, err := s.CompareAndSwap(t.Context(), v, storetest.Object(2))
				testkit.NoError(t, err)
				server.Edit(former, func(map[string]any) map[string]any { return nil })
			})
		}
		return 0
	})
	if got, err := reader.Read(t.Context()); err != nil || got.Epoch != 2 {
		t.Errorf("epoch %d, %v, want 2", got.Epoch, err)
	}
}

// TestRefused checks what the store says when the API server refuses requests or fails.
func TestRefused(t *testing.T) {
	t.Parallel()
	server := kubetest.Simulate(t)
	c := simulated(server).open(t, newName())
	s := c.Plan()
	v, err := s.CompareAndSwap(t.Context(), "", storetest.Object(1))
	testkit.NoError(t, err)
	for code, want := range map[int]string{
		http.StatusForbidden:           "control-role.yaml",
		http.StatusUnauthorized:        "check the token",
		http.StatusServiceUnavailable:  "check that the API server runs",
		http.StatusInternalServerError: "check that the API server runs",
	} {
		server.Before(func(*http.Request) int { return code })
		_, read := s.Read(t.Context())
		_, write := s.CompareAndSwap(t.Context(), v, storetest.Object(2))
		for _, err := range []error{read, write} {
			if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), want) {
				t.Errorf("%d: %v, want %q", code, err, want)
			}
		}
	}
	// One failure in between is no error.
	var n atomic.Int64
	server.Before(func(*http.Request) int {
		if n.Add(1)%2 == 1 {
			return http.StatusServiceUnavailable
		}
		return 0
	})
	_, err = s.CompareAndSwap(t.Context(), v, storetest.Object(2))
	testkit.NoError(t, err)
	server.Before(nil)
	if got, err := s.Read(t.Context()); err != nil || got.Epoch != 2 {
		t.Errorf("epoch %d, %v", got.Epoch, err)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	server := &rest.Config{Host: "http://127.0.0.1:1"}
	for _, c := range []kubernetes.Config{
		{Namespace: "a", Name: "b"},
		{REST: server, Name: "b"},
		{REST: server, Namespace: "a"},
		{REST: server, Namespace: "A", Name: "b"},
		{REST: server, Namespace: "a", Name: "b/c"},
		{REST: server, Namespace: "a", Name: strings.Repeat("b", kubernetes.MaxName+1)},
	} {
		if _, err := kubernetes.New(c); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
	u := <-follow(t, api{host: server.Host}.open(t, "b").Plan()).ch
	if !errors.Is(u.Err, store.ErrUnavailable) || !strings.Contains(u.Err.Error(), "read the plan") || !strings.Contains(u.Err.Error(), "refused") {
		t.Errorf("no API server: %v", u.Err)
	}
}

// FuzzPointer checks that no annotation makes the store allocate more than its limits.
func FuzzPointer(f *testing.F) {
	f.Add(`{"stored":{"id":"0123456789abcdef","sha256":"` + strings.Repeat("ab", 32) + `","size":1048577,"parts":2}}`)
	f.Add(`{"stored":{"id":"x","sha256":"x","size":1,"parts":1}}`)
	f.Add(`{"format":1}`)
	f.Fuzz(func(t *testing.T, text string) {
		size, parts, err := kubernetes.ParsePointer(text)
		if err == nil && (size < 0 || size > store.MaxSize || parts < 0 || parts > store.MaxSize) {
			t.Errorf("%q: %d bytes in %d parts", text, size, parts)
		}
	})
}
