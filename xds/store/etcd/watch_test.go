package etcd_test

import (
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/etcdtest"
	"github.com/cascadeinfer/cascade/xds/internal/storetest"
	"github.com/cascadeinfer/cascade/xds/store"
)

// testCompacted runs storetest.RunCompacted on etcd.
func testCompacted(t *testing.T, cluster *etcdtest.Cluster) {
	prefix, link := newPrefix(), etcdtest.NewLink(t, cluster.Members[0].Endpoint)
	storetest.RunCompacted(t, store.New(open(t, prefix, cluster.Endpoints()...)), store.New(open(t, prefix, link.Endpoint)), link, cluster.Compact)
}

// testWatchCut runs storetest.RunWatchCut on etcd.
func testWatchCut(t *testing.T, cluster *etcdtest.Cluster) {
	prefix, link := newPrefix(), etcdtest.NewLink(t, cluster.Members[0].Endpoint)
	s, watched := store.New(open(t, prefix, cluster.Endpoints()...)), store.New(open(t, prefix, link.Endpoint))
	storetest.RunWatchCut(t, s, watched, link, slices.Repeat([]func(){link.Cut}, 5), func() {})
}

// testLostAnswer loses the answer of a write that was made: the write succeeds, and is made once.
func testLostAnswer(t *testing.T, cluster *etcdtest.Cluster) {
	prefix, link := newPrefix(), etcdtest.NewLink(t, cluster.Members[0].Endpoint)
	s := store.New(open(t, prefix, link.Endpoint))
	v, err := s.CompareAndSwap(t.Context(), "", storetest.Object(1))
	testkit.NoError(t, err)
	for e := policies.Epoch(2); e <= 3; e++ {
		link.HoldAnswers()
		time.AfterFunc(1500*time.Millisecond, link.Heal) // in the second attempt
		if v, err = s.CompareAndSwap(t.Context(), v, storetest.Object(e)); err != nil {
			t.Fatal(err)
		}
	}
	raw := cluster.Client()
	r, err := raw.Get(t.Context(), prefix+"/root")
	testkit.NoError(t, err)
	if r.Kvs[0].Version != 3 {
		t.Errorf("the plan was written %d times, want 3", r.Kvs[0].Version)
	}
	u := <-storetest.Follow(t, s).Updates
	if u.Version != v || u.Object.Epoch != 3 {
		t.Errorf("stored is epoch %d, version %q, want 3, %q", u.Object.Epoch, u.Version, v)
	}
}
