package etcd_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/xds/etcdtest"
	"github.com/cascadeinfer/cascade/xds/internal/storetest"
	"github.com/cascadeinfer/cascade/xds/store"
)

// testCompacted runs storetest.RunCompacted on etcd.
func testCompacted(t *testing.T, cluster *etcdtest.Cluster) {
	prefix, link := newPrefix(), etcdtest.NewLink(t, cluster.Members[0].Endpoint)
	storetest.RunCompacted(t, open(t, prefix, cluster.Endpoints()...).Plan(), open(t, prefix, link.Endpoint).Plan(), link, cluster.Compact)
}

// testWatchCut closes the connections of a watch, and lets one hang: what was stored arrives
// by the next read at the latest, and later changes do, too.
func testWatchCut(t *testing.T, cluster *etcdtest.Cluster) {
	prefix, link := newPrefix(), etcdtest.NewLink(t, cluster.Members[0].Endpoint)
	s := open(t, prefix, cluster.Endpoints()...).Plan()
	f := storetest.Follow(t, open(t, prefix, link.Endpoint).Plan())
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
	// An operator's edit of the plan is no event.
	raw := cluster.Client()
	r, err := raw.Get(t.Context(), prefix+"/plan")
	testkit.NoError(t, err)
	_, err = raw.Put(t.Context(), prefix+"/plan", strings.Replace(string(r.Kvs[0].Value), `"epoch": 6`, `"epoch": 7`, 1))
	testkit.NoError(t, err)
	f.Await(7)
	link.Partition()
	if err := f.AwaitError(); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "no answer in time") {
		t.Errorf("the error of a partition is %v", err)
	}
	link.Heal()
	f.Await(7)
}

// testLostAnswer loses the answer of a write that was made: the write succeeds, and is made once.
func testLostAnswer(t *testing.T, cluster *etcdtest.Cluster) {
	prefix, link := newPrefix(), etcdtest.NewLink(t, cluster.Members[0].Endpoint)
	s := open(t, prefix, link.Endpoint).Plan()
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
	r, err := raw.Get(t.Context(), prefix+"/plan")
	testkit.NoError(t, err)
	if r.Kvs[0].Version != 3 {
		t.Errorf("the plan was written %d times, want 3", r.Kvs[0].Version)
	}
	u := <-storetest.Follow(t, s).Updates
	if u.Version != v || u.Object.Epoch != 3 {
		t.Errorf("stored is epoch %d, version %q, want 3, %q", u.Object.Epoch, u.Version, v)
	}
}
