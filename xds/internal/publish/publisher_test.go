package publish_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/resources"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// view returns a fleet of one model. Each of the stages is a list of replicas,
// and the cuts are the boundaries between them.
func view(epoch policies.Epoch, cuts []policies.Tokens, stages ...string) resources.View {
	p := policies.Plan{Model: "m", Epoch: epoch}
	v := resources.View{Models: []resources.Model{{Name: "m", Context: 1 << 17}}}
	low := policies.Tokens(0)
	for k, word := range stages {
		st := policies.Stage{Low: low, High: policies.Unbounded}
		if k < len(cuts) {
			st.High = cuts[k]
		}
		low = st.High
		for _, id := range strings.Fields(word) {
			st.Replicas = append(st.Replicas, policies.ReplicaID(id))
			v.Endpoints = append(v.Endpoints, endpoint("m", id))
		}
		p.Stages = append(p.Stages, st)
	}
	v.Plans = []policies.Plan{p}
	return v
}

// endpoint returns a replica whose address is derived from its id.
func endpoint(model, id string) resources.Endpoint {
	var sum int
	for _, c := range id {
		sum = sum*31 + int(c)
	}
	return resources.Endpoint{
		ID: policies.ReplicaID(id), Model: model, Host: fmt.Sprintf("n%d", sum%3),
		Address: fmt.Sprintf("10.%d.%d.%d:8000", sum>>16&255, sum>>8&255, sum&255),
	}
}

// recordingCache is a Cache that records the sets.
type recordingCache struct {
	*cache.Cache
	mu   sync.Mutex
	sets []resources.Set
}

func (c *recordingCache) Set(group string, s resources.Set) {
	c.mu.Lock()
	c.sets = append(c.sets, s)
	c.mu.Unlock()
	c.Cache.Set(group, s)
}

// takeChanges returns, for each set since *since, how many resources of each
// type changed, such as "cds 8, eds 8".
func (c *recordingCache) takeChanges(since *int) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for i := *since; i < len(c.sets); i++ {
		var before resources.Set
		if i > 0 {
			before = c.sets[i-1]
		}
		var words []string
		for short, typ := range map[string]string{"cds": resources.ClusterType, "eds": resources.EndpointType, "lds": resources.ListenerType, "rds": resources.RouteType} {
			names := resources.ChangedNames(before, c.sets[i], typ)
			names = slices.DeleteFunc(names, func(n string) bool {
				r := cmp.Or(c.sets[i].Get(typ, n), before.Get(typ, n))
				return r.Unlisted // these proxies do not subscribe to it
			})
			if len(names) > 0 {
				words = append(words, fmt.Sprintf("%s %d", short, len(names)))
			}
		}
		slices.Sort(words)
		out = append(out, strings.Join(words, ", "))
	}
	*since = len(c.sets)
	return out
}

// harness is a control plane with its proxies, inside a synctest bubble.
type harness struct {
	t         *testing.T
	cache     *recordingCache
	ledger    *publish.Ledger
	publisher *publish.Publisher
	server    serverv3.Server
	history   *history
	ctx       context.Context
	wg        sync.WaitGroup
	checked   int // sets that waitForIdle has compared
}

func newHarness(t *testing.T, ackTimeout time.Duration) *harness {
	t.Helper()
	return startHarness(t, publish.Config{AckTimeout: ackTimeout})
}

// startHarness completes the configuration with a cache and a ledger.
func startHarness(t *testing.T, cfg publish.Config) *harness {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &harness{t: t, ledger: publish.NewLedger(nil), ctx: ctx,
		history: &history{plans: make(map[string]policies.Plan), at: make(map[policies.ReplicaID]string)}}
	w.cache = &recordingCache{Cache: cache.New(cache.Config{Group: func(n *corev3.Node) string { return cfg.Groups.GroupOf(n.GetId(), n.GetCluster()) }})}
	cfg.Cache, cfg.Ledger = w.cache, w.ledger
	var err error
	if w.publisher, err = publish.New(cfg); err != nil {
		t.Fatal(err)
	}
	w.server = serverv3.NewServer(ctx, w.cache, w.ledger)
	w.wg.Go(func() {
		if err := w.publisher.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); w.wg.Wait() })
	return w
}

func (w *harness) startProxy(p *fakeProxy) *fakeProxy {
	p.t, p.history = w.t, w.history
	if p.rand == nil {
		p.rand = rand.New(rand.NewPCG(1, 2))
	}
	w.wg.Go(func() { p.run(w.ctx, w.server) })
	return p
}

func (w *harness) submit(v resources.View) {
	w.history.add(v)
	w.publisher.Submit(v)
}

// waitForIdle waits until the rollout is over and compares the changes of its
// sets.
func (w *harness) waitForIdle(want ...string) {
	w.t.Helper()
	for range 100 {
		synctest.Wait()
		if w.publisher.Status().Phase == "idle" {
			break
		}
		time.Sleep(time.Second)
	}
	time.Sleep(time.Second) // until the last set has arrived
	synctest.Wait()
	if got := w.cache.takeChanges(&w.checked); want != nil && !slices.Equal(got, want) {
		w.t.Fatalf("sets changed %q, want %q", got, want)
	}
}

func TestPhases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, 0)
		p := w.startProxy(&fakeProxy{id: "n1", maxDelay: 20 * time.Millisecond})
		cuts := []policies.Tokens{1000, 9000}
		w.submit(view(1, cuts, "a b", "c", "d e"))
		w.waitForIdle("cds 8, eds 8, lds 1, rds 1")
		if st := w.publisher.Status(); st.Epoch != 1 || len(st.Nodes) != 1 || st.Nodes[0].Epoch != 1 || !st.Nodes[0].Current {
			t.Errorf("status %+v", st)
		}
		w.submit(view(2, []policies.Tokens{1500, 9000}, "a b", "c", "d e"))
		w.waitForIdle("rds 1") // a boundary is one resource
		w.submit(view(3, cuts, "a", "b c", "d e"))
		w.waitForIdle("eds 1", "rds 1", "eds 1") // b joins s1, then the routes change, then b leaves s0
		w.submit(view(3, cuts, "a", "b c", "d e"))
		w.waitForIdle() // nothing has changed
		heavy := view(3, cuts, "a", "b c", "d e")
		heavy.Endpoints[0].Weight = 50
		heavy.Endpoints[3].Health = resources.Unhealthy
		w.submit(heavy)
		w.waitForIdle("eds 8") // every stage has the health of all replicas; no routes, no second step
		heavy.Endpoints = slices.Clone(heavy.Endpoints)
		heavy.Endpoints[0].Weight = 40
		w.submit(heavy)
		w.waitForIdle("eds 1") // a weight is in the endpoints of its stage and of the next shorter one
		before := p.received()
		w.submit(heavy)
		w.waitForIdle()
		if p.received() != before {
			t.Error("resources sent for an unchanged view")
		}
		if st := w.publisher.Status(); st.Epoch != 3 || st.Nodes[0].Epoch != 3 || !st.Nodes[0].Current || st.Err != nil {
			t.Errorf("status %+v", st)
		}
		if p.checked == 0 {
			t.Error("the proxy checked no routes")
		}
	})
}

func TestModelAddedAndRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, 0)
		w.startProxy(&fakeProxy{id: "n1", maxDelay: 20 * time.Millisecond})
		one := view(1, nil, "a b")
		w.submit(one)
		w.waitForIdle("cds 8, eds 8, lds 1, rds 1")
		two := view(1, nil, "a b")
		two.Models = append(two.Models, resources.Model{Name: "z", Context: 100})
		two.Plans = append(two.Plans, policies.Plan{Model: "z", Epoch: 2, Stages: policies.OneStagePlan("z", []policies.ReplicaID{"q"}).Stages})
		two.Endpoints = append(two.Endpoints, endpoint("z", "q"))
		w.submit(two)
		w.waitForIdle("cds 8, eds 8", "rds 1")
		w.submit(one)
		w.waitForIdle("rds 1", "cds 8, eds 8") // routes are removed first, then their clusters
	})
}

func TestInvalidViewKeepsLastGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, 0)
		w.submit(view(1, nil, "a b"))
		w.waitForIdle("cds 8, eds 8, lds 1, rds 1")
		bad := view(2, nil, "a b")
		bad.Endpoints[1].Address = bad.Endpoints[0].Address
		w.submit(bad)
		w.waitForIdle()
		st := w.publisher.Status()
		if st.Epoch != 1 || st.Err == nil || !strings.Contains(st.Err.Error(), "same address") {
			t.Errorf("status %+v", st)
		}
		w.submit(view(3, nil, "a"))
		w.waitForIdle("rds 1", "eds 8") // b leaves only after the last route to it
		if st := w.publisher.Status(); st.Err != nil || st.Epoch != 3 {
			t.Errorf("status %+v", st)
		}
	})
}

// TestSlowNodeIsFenced checks that a node which never answers delays one
// rollout by the timeout, is fenced, and delays no other rollout.
func TestSlowNodeIsFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bound = 2 * time.Second
		w := newHarness(t, bound)
		w.startProxy(&fakeProxy{id: "good", maxDelay: time.Millisecond})
		w.submit(view(1, []policies.Tokens{10}, "a", "b c"))
		w.waitForIdle()
		hung := w.startProxy(&fakeProxy{id: "hung", maxDelay: 1000 * time.Hour})
		time.Sleep(time.Second)
		start := time.Now()
		waitFor := func(epoch policies.Epoch) time.Duration {
			for w.publisher.Status().Epoch != epoch || w.publisher.Status().Phase != "idle" {
				time.Sleep(time.Millisecond)
				synctest.Wait()
			}
			took := time.Since(start)
			start = time.Now()
			return took
		}
		w.submit(view(2, []policies.Tokens{10}, "a b", "c"))
		if took := waitFor(2); took < bound || took > bound+time.Second {
			t.Errorf("first rollout took %v, want the timeout of %v once", took, bound)
		}
		for e := policies.Epoch(3); e < 10; e++ {
			stages := []string{"a b", "c"}
			if e%2 == 1 {
				stages = []string{"a", "b c"}
			}
			w.submit(view(e, []policies.Tokens{10}, stages...))
			if took := waitFor(e); took > bound/2 {
				t.Errorf("rollout %d took %v with a fenced node", e, took)
			}
		}
		st := w.publisher.Status()
		i := slices.IndexFunc(st.Nodes, func(n publish.Node) bool { return n.ID == "hung" })
		if n := st.Nodes[i]; !n.Fenced || n.Current || n.Epoch != 0 {
			t.Errorf("status of the slow node: %+v", n)
		}
		_ = hung
	})
}

// TestObserver checks that no rollout waits for an observer that never answers,
// and that it is not fenced.
func TestObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, 2*time.Second)
		w.startProxy(&fakeProxy{id: "good", maxDelay: time.Millisecond})
		w.startProxy(&fakeProxy{id: "looks", cluster: resources.ObserverCluster, maxDelay: 1000 * time.Hour})
		w.submit(view(1, []policies.Tokens{10}, "a", "b c"))
		w.waitForIdle()
		start := time.Now()
		w.submit(view(2, []policies.Tokens{10}, "a b", "c"))
		for w.publisher.Status().Epoch != 2 || w.publisher.Status().Phase != "idle" {
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("rollout took %v with a silent observer", took)
		}
		for _, n := range w.publisher.Status().Nodes {
			if n.Observer != (n.ID == "looks") || n.Fenced {
				t.Errorf("status: %+v", n)
			}
		}
	})
}

// lateCache is a Cache whose nodes are late when the test says so.
type lateCache struct {
	mu      sync.Mutex
	late    []string
	changed chan struct{}
}

func (s *lateCache) Set(string, resources.Set) {}
func (s *lateCache) Changed() <-chan struct{}  { return s.changed }

func (s *lateCache) Unanswered(_ []string, ids map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range s.late {
		ids[id] = true
	}
}

func (s *lateCache) setLate(late ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late = late
}

// TestAckTimeoutPerNode checks that a table which replaces another within a
// phase gives nodes that had caught up a fresh timeout, and late nodes none,
// and that the phase ends even if nodes keep becoming late one after another.
func TestAckTimeoutPerNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bound = 2 * time.Second
		target := &lateCache{changed: make(chan struct{})}
		ledger := publish.NewLedger(nil)
		for i, id := range []string{"hung", "good", "x", "y"} {
			// The ledger knows the nodes, and the cache which of them are late.
			ledger.OnDeltaStreamOpen(t.Context(), int64(i), "")
			if err := ledger.OnStreamDeltaRequest(int64(i), &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: id}, TypeUrl: resources.SecretType}); err != nil {
				t.Fatal(err)
			}
		}
		p, err := publish.New(publish.Config{Cache: target, Ledger: ledger, AckTimeout: bound})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := p.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		defer func() { cancel(); wg.Wait() }()
		begun := time.Now()
		phaseAt := func(at time.Duration, want string) {
			t.Helper()
			time.Sleep(at - time.Since(begun))
			synctest.Wait()
			if got := p.Status().Phase; got != want {
				t.Errorf("after %v in phase %s, want %s", at, got, want)
			}
		}
		epoch := policies.Epoch(0)
		submit := func(stages ...string) {
			epoch++
			p.Submit(view(epoch, []policies.Tokens{10}, stages...))
			synctest.Wait()
		}
		answer := func(late ...string) {
			target.setLate(late...)
			target.changed <- struct{}{}
			synctest.Wait()
		}
		submit("a", "b")
		phaseAt(0, "idle")

		target.setLate("hung", "good")
		submit("a", "b c")
		phaseAt(bound/2, "add")
		answer("hung")
		target.setLate("hung", "good")
		phaseAt(bound-1, "add")
		submit("a", "b c d") // good is late for this one alone
		phaseAt(bound, "add")
		phaseAt(2*bound-2, "add")
		answer("hung")
		phaseAt(2*bound-2, "idle")

		// Two nodes are late in turn, so that the phase never settles.
		begun = time.Now()
		target.setLate("x")
		submit("a", "b c d e")
		for i := range 5 {
			answer([]string{"x", "y"}...)
			time.Sleep(bound / 4)
			answer([]string{"x", "y"}[(i+1)%2])
			phaseAt(time.Duration(i+1)*bound/2, "add")
		}
		answer("x", "y")
		phaseAt(3*bound-1, "add")
		phaseAt(3*bound, "idle")
	})
}

// TestNACK checks that a route table which a node refuses is rolled back at
// once and never sent again, and that a table with other bytes is tried.
func TestNACK(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newHarness(t, time.Second)
		refused := make(map[string]int)
		bad := w.startProxy(&fakeProxy{id: "picky", maxDelay: time.Millisecond})
		w.submit(view(1, []policies.Tokens{10}, "a", "b"))
		w.waitForIdle()
		good := bad.version(resources.RouteType, resources.RouteName)
		bad.refuse(func(r *discoveryv3.Resource) bool {
			if r.Name != resources.RouteName || r.Version == good {
				return false
			}
			refused[r.Version]++
			return true
		})
		two := view(2, []policies.Tokens{20}, "a", "b")
		w.submit(two)
		w.waitForIdle("rds 1", "rds 1") // there and back
		st := w.publisher.Status()
		n := st.Nodes[0]
		if n.NACKs != 1 || len(refused) != 1 || n.LastError != "no "+resources.RouteName || n.Epoch != 1 || n.Fenced || !n.Current {
			t.Errorf("refused %v, status %+v", refused, n)
		}
		const why = "blocked at plan 1: route table cascade refused by picky: no cascade"
		if n.Why != why || st.Err == nil || st.Epoch != 1 {
			t.Errorf("status %+v, want %q", st, why)
		}
		if got := w.publisher.Quarantined(); len(got) != 1 || got[0].Name != resources.RouteName || got[0].Node != "picky" {
			t.Errorf("refused: %+v", got)
		}
		if bad.version(resources.RouteType, resources.RouteName) != good {
			t.Error("proxy lost its last good routes")
		}
		// Health changes are still applied, over the plan that the proxy has.
		two.Endpoints = slices.Clone(two.Endpoints)
		two.Endpoints[0].Health = resources.Unhealthy
		w.submit(two)
		w.waitForIdle("eds 8")
		bad.refuse(nil)
		two.Endpoints = slices.Clone(two.Endpoints)
		two.Endpoints[0].Health = resources.Healthy
		w.submit(two)
		w.waitForIdle("eds 8")
		w.submit(view(3, []policies.Tokens{30}, "a", "b"))
		w.waitForIdle("rds 1")
		if n := w.publisher.Status().Nodes[0]; n.Epoch != 3 || n.Fenced || !n.Current || n.Why != "" || len(refused) != 1 {
			t.Errorf("refused %v, status %+v", refused, n)
		}
	})
}

// TestRestart checks that a restarted control plane with the same view sends no
// resource again.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := view(1, []policies.Tokens{10}, "a", "b c")
		w := newHarness(t, 0)
		p := w.startProxy(&fakeProxy{id: "n1", maxDelay: time.Millisecond, breakChance: 0})
		w.submit(v)
		w.waitForIdle()
		before := p.received()
		if before == 0 {
			t.Fatal("no resource received")
		}
		again := newHarness(t, 0)
		again.history = w.history
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		q := &fakeProxy{t: t, id: "n1", maxDelay: time.Millisecond, history: w.history, rand: rand.New(rand.NewPCG(3, 4))}
		wg.Go(func() {
			q.has = p.has
			for ctx.Err() == nil {
				q.runStream(ctx, again.server)
			}
		})
		time.Sleep(time.Second) // it subscribes before there is a set
		again.submit(v)
		again.waitForIdle()
		if q.received() != 0 {
			t.Errorf("%d resources sent again", q.received())
		}
		if n := again.publisher.Status().Nodes[0]; n.Epoch != 1 || !n.Current {
			t.Errorf("status %+v", n)
		}
		again.submit(view(2, []policies.Tokens{20}, "a", "b c"))
		again.waitForIdle("rds 1")
		if q.received() != 1 {
			t.Errorf("%d resources for a new boundary", q.received())
		}
		cancel()
		wg.Wait()
	})
}

// TestRandomRollouts changes replicas, cuts, models, health and weights at
// random while proxies are slow and their streams break. Every proxy checks
// after every response that its routes lead to the right replicas.
func TestRandomRollouts(t *testing.T) {
	for seed := range uint64(repeats(2, 8)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { randomRollouts(t, seed) })
		})
	}
}

func randomRollouts(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 7))
	w := newHarness(t, 3*time.Second)
	var proxies []*fakeProxy
	for i := range 4 {
		proxies = append(proxies, w.startProxy(&fakeProxy{
			id: fmt.Sprint("n", i), maxDelay: time.Duration(1+50*i) * time.Millisecond, breakChance: float64(i) * 0.01,
			rand: rand.New(rand.NewPCG(seed, uint64(i))),
		}))
	}
	v := view(1, []policies.Tokens{1000}, "a b c", "d e")
	w.submit(v)
	for epoch := policies.Epoch(2); epoch < 30; epoch++ {
		v = mutate(r, v, epoch)
		w.submit(v)
		time.Sleep(time.Duration(r.Int64N(int64(300 * time.Millisecond))))
	}
	w.waitForIdle()
	time.Sleep(10 * time.Second)
	synctest.Wait()
	st := w.publisher.Status()
	if st.Err != nil {
		t.Fatal(st.Err)
	}
	for i, p := range proxies {
		if p.checked < 15 {
			t.Errorf("%s checked its routes only %d times", p.id, p.checked)
		}
		if n := st.Nodes[i]; !n.Current || n.Epoch != st.Epoch {
			t.Errorf("in the end: %+v, want epoch %d", n, st.Epoch)
		}
	}
}

// mutate returns the view with one random change.
func mutate(r *rand.Rand, v resources.View, epoch policies.Epoch) resources.View {
	endpoints := slices.Clone(v.Endpoints)
	switch r.IntN(5) {
	case 0: // health and weight
		i := r.IntN(len(endpoints))
		endpoints[i].Health = resources.Health(r.IntN(3))
		endpoints[i].Weight = 1 + uint32(r.IntN(10))
		v.Endpoints = endpoints
		return v
	case 1: // a new replica
		endpoints = append(endpoints, endpoint("m", fmt.Sprint("r", epoch)))
	case 2: // one replica is removed
		if len(endpoints) > 3 {
			i := r.IntN(len(endpoints))
			endpoints = slices.Delete(endpoints, i, i+1)
		}
	}
	// A new plan for the replicas that are left.
	ids := make([]string, 0, len(endpoints))
	for _, e := range endpoints {
		ids = append(ids, string(e.ID))
	}
	r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	n := 1 + r.IntN(min(len(ids), policies.MaxStages))
	stages := make([]string, n)
	cuts := make([]policies.Tokens, n-1)
	for k := range cuts {
		cuts[k] = policies.Tokens(1000*(k+1) + r.IntN(900))
	}
	for i, id := range ids {
		k := r.IntN(n)
		if i < n {
			k = i
		}
		stages[k] += " " + id
	}
	out := view(epoch, cuts, stages...)
	for i := range out.Endpoints {
		for _, e := range endpoints {
			if e.ID == out.Endpoints[i].ID {
				out.Endpoints[i] = e
			}
		}
	}
	return out
}
