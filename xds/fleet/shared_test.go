package fleet

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/orders"
	"github.com/cascadeinfer/cascade/xds/internal/plantest"
	"github.com/cascadeinfer/cascade/xds/internal/reportservice"
	"github.com/cascadeinfer/cascade/xds/internal/weights"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

// server is one of several control planes on one store.
type server struct {
	*Fleet
	shown *snapshotRecorder
	kill  func() // like a crash: the lease is not released
	done  chan struct{}
}

// crashableStore is a store that can be disconnected from its control plane, as if that
// had crashed.
type crashableStore struct {
	store.Store
	mu   sync.Mutex
	dead bool
}

func (d *crashableStore) CompareAndSwap(ctx context.Context, old store.Version, o store.Object) (store.Version, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead {
		return "", errors.New("dead")
	}
	return d.Store.CompareAndSwap(ctx, old, o)
}

func (d *crashableStore) disconnect() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead = true
}

var sharedIDs = []string{"r0", "r1", "r2", "r3"}

// startShared starts a control plane on a store and kills it when the test ends.
func startShared(t *testing.T, name string, st store.Store) *server {
	t.Helper()
	rules := testRules(PolicyDefault)
	rules.Name, rules.Shared = name, true
	var list []policies.Replica
	for _, id := range sharedIDs {
		list = append(list, testReplica(id))
	}
	s := &server{shown: new(snapshotRecorder), done: make(chan struct{})}
	d := &crashableStore{Store: st}
	f, err := New(Config{Rules: rules, Replicas: list, Store: d, Publisher: s.shown})
	if err != nil {
		t.Fatal(err)
	}
	s.Fleet = f
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(s.done)
		if err := f.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	s.kill = func() {
		d.disconnect()
		cancel()
		<-s.done
	}
	return s
}

// reporter reports for replicas to all control planes, twice a second.
type reporter struct {
	mu      sync.Mutex
	load    map[string]policies.Tokens // held by each replica; absent: silent
	broken  map[string]bool            // replicas whose engine does not answer
	servers []*server
}

func newReporter(servers ...*server) *reporter {
	r := &reporter{load: map[string]policies.Tokens{}, broken: map[string]bool{}, servers: servers}
	for _, id := range sharedIDs {
		r.load[id] = 10_000
	}
	return r
}

func (r *reporter) set(id string, held policies.Tokens, broken bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.load[id], r.broken[id] = held, broken
}

func (r *reporter) run(ctx context.Context) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for n := uint64(1); ; n++ {
		r.mu.Lock()
		var reports []loadreport.Report
		for id, held := range r.load {
			reports = append(reports, loadreport.Report{
				Replica: policies.ReplicaID(id), Model: "m", Sequence: n, EngineReady: !r.broken[id],
				Load: policies.Load{Running: 10, Held: held, Iteration: 0.02}, BytesPerToken: 3,
				Flow: policies.Flow{Seen: 100 * n},
			})
		}
		servers := r.servers
		r.mu.Unlock()
		for _, s := range servers {
			for _, report := range reports {
				if _, err := s.HandleReport(ctx, report); err != nil && ctx.Err() == nil && !errors.Is(err, reportservice.ErrStopped) {
					panic(err)
				}
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func view(s *server) resources.View {
	if last := s.shown.last(); last != nil {
		return last.View(resources.Settings{})
	}
	return resources.View{}
}

// requireAgreement fails unless the control planes publish the same, byte for byte.
func requireAgreement(t *testing.T, when string, servers ...*server) {
	t.Helper()
	first := view(servers[0])
	for _, s := range servers[1:] {
		if v := view(s); !reflect.DeepEqual(v, first) {
			t.Errorf("%s: %s shows\n%+v\nand %s\n%+v", when, servers[0].cfg.Name, first, s.cfg.Name, v)
		}
	}
	var want resources.Set
	for i, s := range servers {
		set, err := resources.Build(view(s))
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if i == 0 {
			want = set
		} else if !reflect.DeepEqual(set, want) {
			t.Errorf("%s: the resources differ", when)
		}
	}
}

func leaders(servers ...*server) (names []string) {
	for _, s := range servers {
		if s.Snapshot().Leadership.Leading {
			names = append(names, s.cfg.Name)
		}
	}
	return names
}

func of(s *server, id policies.ReplicaID) ReplicaState {
	for _, r := range s.shown.last().Models[0].Replicas {
		if r.ID == id {
			return r
		}
	}
	return ReplicaState{}
}

// TestTwoServers runs two control planes on one store. Both always publish the same,
// and both apply an order that either of them receives. When the leader dies, the other
// leads within five seconds, with the loads that it knows.
func TestTwoServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := new(store.Memory)
		a := startShared(t, "a", st)
		synctest.Wait()
		b := startShared(t, "b", st)
		synctest.Wait()
		defer b.kill()
		ctx, cancel := context.WithCancel(t.Context())
		r := newReporter(a, b)
		var wg sync.WaitGroup
		wg.Go(func() { r.run(ctx) })
		defer wg.Wait()
		defer cancel()

		settle := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		settle(3 * time.Second)
		if got := leaders(a, b); !reflect.DeepEqual(got, []string{"a"}) {
			t.Fatalf("%v plan", got)
		}
		requireAgreement(t, "at rest", a, b)
		if got := plantest.Format(b.shown.last().Models[0].Plan); got != "r0 r1 r2 r3" {
			t.Errorf("plan %s", got)
		}

		r.set("r0", 90_000, false)
		settle(2 * time.Second)
		requireAgreement(t, "one is loaded", a, b)
		if w := of(b, "r0").Weight; w >= weights.Neutral {
			t.Errorf("the loaded replica has weight %d at the follower", w)
		}
		r.set("r1", 10_000, true)
		settle(800 * time.Millisecond)
		requireAgreement(t, "one is broken", a, b)
		if h := of(b, "r1").Health; h != resources.Unhealthy {
			t.Errorf("the broken replica is %v at the follower", h)
		}

		// Orders are sent to the follower.
		if err := b.Drain(ctx, "r2"); err != nil {
			t.Fatal(err)
		}
		settle(100 * time.Millisecond)
		requireAgreement(t, "one is drained", a, b)
		if got := plantest.Format(a.shown.last().Models[0].Plan); got != "r0 r1 r3" || of(a, "r2").Health != resources.Draining {
			t.Errorf("plan %s", got)
		}
		if err := b.Undrain(ctx, "r2"); err != nil {
			t.Fatal(err)
		}
		if err := b.Order(ctx, orders.Pin{Model: "m", By: "ann"}); err != nil {
			t.Fatal(err)
		}
		b.RecordRefusals([]store.Refusal{{Type: "Cluster", Name: "c", Version: "v1", Text: "bad"}})
		settle(2 * time.Second)
		requireAgreement(t, "pinned", a, b)
		for _, s := range []*server{a, b} {
			snap := s.Snapshot()
			if p := snap.Models[0].Pin; p == nil || p.By != "ann" || len(snap.Refused) != 1 {
				t.Errorf("%s: pin %+v, refused %+v", s.cfg.Name, p, snap.Refused)
			}
		}

		epoch := b.shown.last().Epoch
		killed := time.Now()
		a.kill()
		for len(leaders(b)) == 0 && time.Since(killed) < 10*time.Second {
			settle(50 * time.Millisecond)
		}
		if d := time.Since(killed); d > 5*time.Second {
			t.Errorf("another one plans after %v", d)
		} else {
			t.Logf("another one plans after %v", d)
		}
		// The weights and the epochs continue from their last values.
		settle(500 * time.Millisecond)
		if w := of(b, "r0").Weight; w >= weights.Neutral {
			t.Errorf("the new planner gives the loaded replica %d", w)
		}
		if h := of(b, "r1").Health; h != resources.Unhealthy {
			t.Errorf("the new planner has the broken replica as %v", h)
		}
		if err := b.Drain(ctx, "r3"); err != nil {
			t.Fatal(err)
		}
		if got := b.shown.last(); got.Epoch <= epoch || plantest.Format(got.Models[0].Plan) != "r0 r1 r2" {
			t.Errorf("epoch %d after %d: %s", got.Epoch, epoch, plantest.Format(got.Models[0].Plan))
		}

		// The control plane that died starts again, as a follower.
		c := startShared(t, "a", st)
		defer c.kill()
		r.mu.Lock()
		r.servers = []*server{b, c}
		r.mu.Unlock()
		settle(6 * time.Second)
		if got := leaders(b, c); !reflect.DeepEqual(got, []string{"b"}) {
			t.Fatalf("%v plan", got)
		}
		requireAgreement(t, "back", b, c)
		var last policies.Epoch
		for _, s := range []*server{a, b, c} {
			last = 0
			for _, snap := range s.shown.list {
				if snap.Epoch < last {
					t.Errorf("epoch %d after %d", snap.Epoch, last)
				}
				last = snap.Epoch
			}
		}
	})
}

// TestLeaderStepsDown checks that another control plane leads at once when the leader
// ends cleanly.
func TestLeaderStepsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := new(store.Memory)
		rules := testRules(PolicyDefault)
		rules.Name, rules.Shared = "a", true
		f, err := New(Config{Rules: rules, Replicas: []policies.Replica{testReplica("r0")}, Store: st, Publisher: new(snapshotRecorder)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = f.Run(ctx) })
		synctest.Wait()
		b := startShared(t, "b", st)
		defer b.kill()
		time.Sleep(time.Second)
		cancel()
		wg.Wait()
		time.Sleep(maxTick)
		synctest.Wait()
		if len(leaders(b)) != 1 {
			t.Error("no control plane plans")
		}
	})
}

// TestTwoServersOnAFile is the core of TestTwoServers with a file. It uses the real
// clock, because a bubble's clock does not wait for the kernel.
func TestTwoServersOnAFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "plan.json")
	open := func() store.Store {
		f, err := store.NewFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	a, b := startShared(t, "a", open()), startShared(t, "b", open())
	defer b.kill()
	ctx, cancel := context.WithCancel(t.Context())
	r := newReporter(a, b)
	var wg sync.WaitGroup
	wg.Go(func() { r.run(ctx) })
	defer wg.Wait()
	defer cancel()
	until := func(what string, ok func() bool) time.Duration {
		t.Helper()
		begin := time.Now()
		for !ok() {
			if time.Since(begin) > 20*time.Second {
				t.Fatalf("%s: not yet", what)
			}
			time.Sleep(20 * time.Millisecond)
		}
		return time.Since(begin)
	}
	same := func() bool { return reflect.DeepEqual(view(a), view(b)) }
	until("both show the first plan", func() bool { return a.shown.last() != nil && b.shown.last() != nil && same() })
	r.set("r0", 90_000, true)
	until("both show the broken replica", func() bool { return of(a, "r0").Health == resources.Unhealthy && same() })
	planner, other := a, b
	until("one plans", func() bool { return len(leaders(a, b)) == 1 })
	if len(leaders(b)) == 1 {
		planner, other = b, a
	}
	if err := other.Drain(ctx, "r1"); err != nil {
		t.Fatal(err)
	}
	until("the drain is seen by both", func() bool {
		return of(planner, "r1").Health == resources.Draining && of(other, "r1").Stage == -1 && same()
	})
	if planner == b {
		defer a.kill()
	}
	planner.kill()
	t.Logf("another one plans after %v", until("the other plans", func() bool { return len(leaders(other)) == 1 }))
}
