package etcd_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/etcdtest"
	"github.com/cascadeinfer/cascade/xds/internal/storetest"
	"github.com/cascadeinfer/cascade/xds/store"
	"github.com/cascadeinfer/cascade/xds/store/etcd"
)

// TestMembers suspends, kills and restarts members of three, one at a time: the store goes on
// within the time of a lease's renewal where the others have a leader, and within a few
// seconds where they elect one.
func TestMembers(t *testing.T) {
	testkit.SkipSlow(t)
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.Config{Members: 3})
	prefix := newPrefix()
	s := store.New(open(t, prefix, cluster.Endpoints()...))
	f := storetest.Follow(t, store.New(open(t, prefix, cluster.Endpoints()...)))
	v, epoch := store.Version(""), policies.Epoch(0)
	// swap writes until it succeeds, and returns how long that took.
	swap := func() time.Duration {
		t.Helper()
		epoch++
		began := time.Now()
		for {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			next, err := s.CompareAndSwap(ctx, v, storetest.Object(epoch))
			cancel()
			switch {
			case err == nil:
				v = next
				return time.Since(began)
			case time.Since(began) > 30*time.Second:
				t.Fatal(err)
			case errors.Is(err, store.ErrConflict): // a write that was reported as failed was made
				u := <-storetest.Follow(t, s).Updates
				testkit.NoError(t, u.Err)
				if v = u.Version; u.Object.Epoch == epoch {
					return time.Since(began)
				}
			}
		}
	}
	swap()
	f.Await(epoch)
	for range 2 {
		leader := cluster.Leader()
		for _, m := range cluster.Members {
			if m == leader {
				continue
			}
			m.Suspend()
			took := swap()
			f.Await(epoch)
			m.Resume()
			t.Logf("a follower suspended: stored after %v", took)
			if took > 2*time.Second {
				t.Errorf("with a suspended follower a write took %v, longer than a renewal may", took)
			}
		}
		leader.Suspend()
		took := swap()
		f.Await(epoch)
		t.Logf("the leader suspended: stored after %v", took)
		leader.Resume()
		cluster.WaitReady()
		leader = cluster.Leader()
		leader.Kill()
		took = swap()
		f.Await(epoch)
		t.Logf("the leader killed: stored after %v", took)
		leader.Restart()
		cluster.WaitReady()
	}
	if u := storetest.Read(t, s); u.Err != nil || u.Object.Epoch != epoch {
		t.Errorf("stored is epoch %d, %v, want %d", u.Object.Epoch, u.Err, epoch)
	}
}

// TestNoSpace fills the database: writes fail with an error that says what to do, reads go on,
// and writes do when there is space again.
func TestNoSpace(t *testing.T) {
	testkit.SkipSlow(t)
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.Config{Args: []string{"--quota-backend-bytes=16777216"}})
	prefix := newPrefix()
	c := open(t, prefix, cluster.Endpoints()...)
	s := store.New(c)
	v := testkit.Must(s.CompareAndSwap(t.Context(), "", storetest.Object(1)))
	cluster.Fill()
	for name, write := range map[string]func() error{
		"plan":     func() error { _, err := s.CompareAndSwap(t.Context(), v, storetest.Object(2)); return err },
		"note":     func() error { return s.PutNote(t.Context(), "a", []byte("x")) },
		"counters": func() error { return s.Counters("a").Save([]byte("x")) },
	} {
		if err := write(); err == nil || !strings.Contains(err.Error(), "compact and defragment it") || !strings.Contains(err.Error(), "alarm disarm") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if u := storetest.Read(t, s); u.Err != nil || u.Object.Epoch != 1 {
		t.Errorf("epoch %d, %v", u.Object.Epoch, u.Err)
	}
	cluster.Empty()
	_, err := s.CompareAndSwap(t.Context(), v, storetest.Object(2))
	testkit.NoError(t, err)
}

// TestUsers checks passwords and permissions, and that no error has a password.
func TestUsers(t *testing.T) {
	testkit.SkipSlow(t)
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.Config{})
	raw := cluster.Client()
	prefix := newPrefix()
	const first, second, wrong = "s3cret-one", "s3cret-two", "s3cret-wrong"
	run := func(_ any, err error) { t.Helper(); testkit.NoError(t, err) }
	run(raw.UserAdd(t.Context(), "root", "r00t"))
	run(raw.UserGrantRole(t.Context(), "root", "root"))
	run(raw.RoleAdd(t.Context(), "cascade"))
	run(raw.RoleGrantPermission(t.Context(), "cascade", prefix+"/", clientv3.GetPrefixRangeEnd(prefix+"/"), clientv3.PermissionType(clientv3.PermReadWrite)))
	run(raw.UserAdd(t.Context(), "cascade", first))
	run(raw.UserGrantRole(t.Context(), "cascade", "cascade"))
	run(raw.AuthEnable(t.Context()))

	var mu sync.Mutex
	password := first
	login := func(prefix, user string, password func() (string, error)) *etcd.Client {
		c := testkit.Must(etcd.New(etcd.Config{Endpoints: cluster.Endpoints(), Prefix: prefix, User: user, Password: password}))
		t.Cleanup(func() { c.Close() })
		return c
	}
	current := func() (string, error) { mu.Lock(); defer mu.Unlock(); return password, nil }
	s := store.New(login(prefix, "cascade", current))
	f := storetest.Follow(t, s)
	v, err := s.CompareAndSwap(t.Context(), "", storetest.Object(1))
	testkit.NoError(t, err)
	f.Await(1)
	refused := func(what, want string, err error) {
		t.Helper()
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v is not ErrUnavailable", what, err)
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	_, err = login(prefix, "cascade", func() (string, error) { return wrong, nil }).ReadRoot(t.Context())
	refused("wrong password", `user "cascade"`, err)
	_, err = login(prefix, "cascade", func() (string, error) { return "", nil }).ReadRoot(t.Context())
	refused("empty password", "is empty", err)
	_, err = login(prefix, "cascade", func() (string, error) { return "", errors.New("file is gone") }).ReadRoot(t.Context())
	refused("no file", "file is gone", err)
	_, err = login("/elsewhere", "cascade", current).ReadRoot(t.Context())
	refused("another prefix", "grant the user's role readwrite on the prefix /elsewhere/", err)
	_, err = open(t, prefix, cluster.Endpoints()...).ReadRoot(t.Context())
	refused("no user", `user ""`, err)

	// Another password: the store logs in again with what the file then has.
	root := testkit.Must(clientv3.New(clientv3.Config{Endpoints: []string{"http://" + cluster.Members[0].Endpoint}, Username: "root", Password: "r00t"}))
	defer root.Close()
	run(root.UserChangePassword(t.Context(), "cascade", second))
	mu.Lock()
	password = second
	mu.Unlock()
	testkit.WaitFor(t, "the store uses the new password", func() bool {
		next, err := s.CompareAndSwap(t.Context(), v, storetest.Object(2))
		if err == nil {
			v = next
		}
		return err == nil
	})
	f.Await(2)
}

// TestPartition runs storetest.RunPartition on etcd.
func TestPartition(t *testing.T) {
	testkit.SkipSlow(t)
	t.Parallel()
	cluster := etcdtest.Start(t, etcdtest.Config{})
	prefix := newPrefix()
	storetest.RunPartition(t, 4, func() (store.Plans, storetest.Link) {
		link := etcdtest.NewLink(t, cluster.Members[0].Endpoint)
		return store.New(open(t, prefix, link.Endpoint)), link
	})
}
