package etcd_test

import (
	"errors"
	"strings"
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

// testWatchCut closes the connections of a watch, and lets one hang: what was stored arrives
// by the next read at the latest, and later changes do, too.
func testWatchCut(t *testing.T, cluster *etcdtest.Cluster) {
	prefix, link := newPrefix(), etcdtest.NewLink(t, cluster.Members[0].Endpoint)
	s := store.New(open(t, prefix, cluster.Endpoints()...))
	f := storetest.Follow(t, store.New(open(t, prefix, link.Endpoint)))
	v, epoch := store.Version(""), policies.Epoch(0)
	swap := func() {
		epoch++
		var err error
		v, err = s.CompareAndSwap(t.Context(), v, storetest.Object(epoch))
		testkit.NoError(t, err)
	}
	swap()
	f.Await(epoch)
	for range 5 {
		link.Cut()
		swap()
		f.Await(epoch)
	}
	link.Partition()
	if err := f.AwaitError(); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "no answer in time") {
		t.Errorf("the error of a partition is %v", err)
	}
	link.Heal()
	f.Await(epoch)
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
