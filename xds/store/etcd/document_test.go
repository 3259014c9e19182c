package etcd_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/xds/etcdtest"
	"github.com/cascadeinfer/cascade/xds/internal/storetest"
	"github.com/cascadeinfer/cascade/xds/store"
	"github.com/cascadeinfer/cascade/xds/store/etcd"
)

// testRenewal checks that a write that changes only the lease leaves the plan's key alone.
func testRenewal(t *testing.T, cluster *etcdtest.Cluster) {
	prefix, raw := newPrefix(), cluster.Client()
	s := open(t, prefix, cluster.Endpoints()...).Plan()
	o := storetest.Object(1)
	v, err := s.CompareAndSwap(t.Context(), "", o)
	testkit.NoError(t, err)
	writes := func() (plan, state int64) {
		for name, n := range map[string]*int64{"plan": &plan, "state": &state} {
			r, err := raw.Get(t.Context(), prefix+"/"+name)
			testkit.NoError(t, err)
			*n = r.Kvs[0].Version
		}
		return plan, state
	}
	for range 3 {
		o.Lease.Expires = o.Lease.Expires.Add(time.Second)
		v, err = s.CompareAndSwap(t.Context(), v, o)
		testkit.NoError(t, err)
	}
	if plan, state := writes(); plan != 1 || state != 4 {
		t.Errorf("plan written %d times and state %d times, want 1 and 4", plan, state)
	}
	o.Drained = nil
	_, err = s.CompareAndSwap(t.Context(), v, o)
	testkit.NoError(t, err)
	if plan, state := writes(); plan != 2 || state != 5 {
		t.Errorf("plan written %d times and state %d times, want 2 and 5", plan, state)
	}
}

// countKeys returns how many keys a prefix has.
func countKeys(t *testing.T, raw *clientv3.Client, prefix string) int64 {
	t.Helper()
	r, err := raw.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	testkit.NoError(t, err)
	return r.Count
}

// testLarge stores objects that do not fit into a value, and checks that the chunks of the
// former ones are removed.
func testLarge(t *testing.T, cluster *etcdtest.Cluster) {
	prefix, raw := newPrefix(), cluster.Client()
	s := open(t, prefix, cluster.Endpoints()...).Plan()
	v, now := store.Version(""), time.Now()
	var garbage etcd.Garbage
	for i := range 2 {
		o := storetest.LargeDocuments(fmt.Sprint("m", i))
		var err error
		v, err = s.CompareAndSwap(t.Context(), v, o)
		testkit.NoError(t, err)
		got, err := open(t, prefix, cluster.Endpoints()...).Plan().Read(t.Context())
		testkit.NoError(t, err)
		if !reflect.DeepEqual(got, o) {
			t.Fatal("a large object comes back changed")
		}
	}
	before := countKeys(t, raw, prefix+"/chunks/")
	testkit.NoError(t, s.Collect(t.Context(), &garbage, now))
	if n := countKeys(t, raw, prefix+"/chunks/"); n != before {
		t.Errorf("%d of %d chunks are left at once", n, before)
	}
	testkit.NoError(t, s.Collect(t.Context(), &garbage, now.Add(etcd.CollectAge)))
	after := countKeys(t, raw, prefix+"/chunks/")
	if after == 0 || after*2 != before {
		t.Errorf("%d of %d chunks are left, want a half", after, before)
	}
	if _, err := s.Read(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := s.CompareAndSwap(t.Context(), v, storetest.LargeObject(200_000)); err == nil || !strings.Contains(err.Error(), "at most 8388608 are allowed") {
		t.Errorf("stored an object beyond the limit: %v", err)
	}
}

// testCollected removes chunks while another control plane stores them: what is stored can be
// read at all times. A write whose chunks were removed before it named them stores them again.
func testCollected(t *testing.T, cluster *etcdtest.Cluster) {
	if storeWhileCollecting(t, cluster, etcd.CollectAge/16) == 0 {
		t.Error("nothing was stored")
	}
	onlyPlan, onlyState := storetest.LargeDocuments("a"), storetest.LargeDocuments("a")
	onlyPlan.Weights, onlyState.Plans = nil, nil
	for _, large := range []store.Object{onlyPlan, onlyState} {
		prefix, raw := newPrefix(), cluster.Client()
		s, swaps, removals := open(t, prefix, cluster.Endpoints()...).Plan(), 0, 1
		s.BeforeSwap(func() {
			if swaps++; swaps <= removals {
				_, err := raw.Delete(t.Context(), prefix+"/chunks/", clientv3.WithPrefix())
				testkit.NoError(t, err)
			}
		})
		v, err := s.CompareAndSwap(t.Context(), "", large)
		testkit.NoError(t, err)
		if _, err := s.Read(t.Context()); err != nil || swaps != 2 {
			t.Errorf("after %d transactions: %v", swaps, err)
		}
		swaps, removals = 0, 100
		large.Epoch++
		if _, err := s.CompareAndSwap(t.Context(), v, large); err == nil || !strings.Contains(err.Error(), "removed meanwhile") {
			t.Errorf("stored a document whose chunks are removed each time: %v", err)
		}
	}
}

// storeWhileCollecting returns how many of two documents were stored while searches for unused
// chunks, each a pace later by their clock, follow each other.
func storeWhileCollecting(t *testing.T, cluster *etcdtest.Cluster, pace time.Duration) (stored int) {
	t.Helper()
	prefix := newPrefix()
	s, other := open(t, prefix, cluster.Endpoints()...).Plan(), open(t, prefix, cluster.Endpoints()...).Plan()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		var garbage etcd.Garbage
		for now := time.Now(); ctx.Err() == nil; now = now.Add(pace) {
			if err := other.Collect(context.Background(), &garbage, now); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	v := store.Version("")
	for i := range 2 {
		next, err := s.CompareAndSwap(t.Context(), v, storetest.LargeDocuments(fmt.Sprint("m", i%2)))
		if err == nil {
			v = next
			stored++
		} else if !strings.Contains(err.Error(), "removed meanwhile") {
			t.Error(err)
		}
		if _, err := s.Read(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	testkit.NoError(t, <-ended)
	return stored
}

func testSetAside(t *testing.T, cluster *etcdtest.Cluster) {
	prefix, raw := newPrefix(), cluster.Client()
	s := open(t, prefix, cluster.Endpoints()...).Plan()
	_, err := s.CompareAndSwap(t.Context(), "", storetest.Object(1))
	testkit.NoError(t, err)
	_, err = raw.Put(t.Context(), prefix+"/plan", "broken")
	testkit.NoError(t, err)
	key, err := s.SetAside(t.Context(), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	testkit.NoError(t, err)
	if r, err := raw.Get(t.Context(), key); err != nil || key != prefix+"/corrupt/20260102T030405Z" || string(r.Kvs[0].Value) != "broken" {
		t.Errorf("%s: %v, %v", key, r, err)
	}
	_, err = s.CompareAndSwap(t.Context(), "", storetest.Object(2))
	testkit.NoError(t, err)
	_, err = raw.Put(t.Context(), prefix+"/state", "broken")
	testkit.NoError(t, err)
	if _, err := s.Read(t.Context()); err == nil || !strings.Contains(err.Error(), prefix+"/state") {
		t.Errorf("a broken state: %v", err)
	}
	key, err = s.SetAside(t.Context(), time.Now())
	testkit.NoError(t, err)
	got, err := s.Read(t.Context())
	if err != nil || key != "" || got.Epoch != 2 || got.Lease != (store.Lease{}) {
		t.Errorf("after the state was set aside as %q: epoch %d, lease %v, %v", key, got.Epoch, got.Lease, err)
	}
	// A plan that lacks a chunk cannot be read, either.
	_, err = raw.Put(t.Context(), prefix+"/plan", `{"chunked": {"sha256": "`+strings.Repeat("00", sha256.Size)+`", "size": 1, "chunks": 1}}`)
	testkit.NoError(t, err)
	key, err = s.SetAside(t.Context(), time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC))
	if err != nil || key != prefix+"/corrupt/20260102T030406Z" {
		t.Errorf("a plan without its chunk was set aside as %q, %v", key, err)
	}
}

// FuzzPointer checks that no value makes the store allocate more than its limits.
func FuzzPointer(f *testing.F) {
	f.Add([]byte(`{"chunked":{"sha256":"` + strings.Repeat("ab", 32) + `","size":1048577,"chunks":2}}`))
	f.Add([]byte(`{"chunked":{"sha256":"x","size":1,"chunks":1}}`))
	f.Add([]byte(`{"format":1}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		size, chunks, err := etcd.ParsePointer(value)
		if err == nil && (size < 0 || size > store.MaxSize || chunks < 0 || chunks > store.MaxSize) {
			t.Errorf("%q: %d bytes in %d chunks", value, size, chunks)
		}
	})
}

// FuzzVersion checks that only versions of this store are parsed.
func FuzzVersion(f *testing.F) {
	for _, v := range []string{"", "1.2", "1.0", "0.1", "1.2x", "-1.2", "01.2", "9223372036854775808.1"} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if v, ok := etcd.ParseVersion(store.Version(text)); ok && string(v) != text {
			t.Errorf("%q is parsed as %q", text, v)
		}
	})
}

// BenchmarkRenewal writes what a leader of 10,000 replicas writes every second.
func BenchmarkRenewal(b *testing.B) {
	cluster := etcdtest.Start(b, etcdtest.Config{})
	s := open(b, newPrefix(), cluster.Endpoints()...).Plan()
	o, v := storetest.LargeObject(10_000), store.Version("")
	for b.Loop() {
		o.Lease.Expires = o.Lease.Expires.Add(time.Second)
		var err error
		if v, err = s.CompareAndSwap(b.Context(), v, o); err != nil {
			b.Fatal(err)
		}
	}
}
