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

// view is a fleet of one model: its stages are the words, each a list of
// replicas, and the cuts lie between them.
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

// endpoint is a replica whose address follows from its name.
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

// counting is a Target that keeps what was shown.
type counting struct {
	*cache.Cache
	mu   sync.Mutex
	sets []resources.Set
}

func (c *counting) Set(group string, s resources.Set) {
	c.mu.Lock()
	c.sets = append(c.sets, s)
	c.mu.Unlock()
	c.Cache.Set(group, s)
}

// shown returns how many sets were shown since it was last asked, and what
// the last ones changed: "cds eds rds", by set.
func (c *counting) shown(since *int) []string {
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
				return r.Unlisted // these proxies do not ask for it
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

// world is a control plane with its proxies, inside a bubble.
type world struct {
	t         *testing.T
	target    *counting
	ledger    *publish.Ledger
	publisher *publish.Publisher
	server    serverv3.Server
	history   *history
	ctx       context.Context
	wg        sync.WaitGroup
	seen      int
}

func newWorld(t *testing.T, bound time.Duration) *world {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &world{t: t, target: &counting{Cache: cache.New(cache.Config{})}, ledger: publish.NewLedger(nil), ctx: ctx,
		history: &history{plans: make(map[string]policies.Plan), at: make(map[policies.ReplicaID]string)}}
	var err error
	w.publisher, err = publish.New(publish.Config{Cache: w.target, Ledger: w.ledger, AckTimeout: bound})
	if err != nil {
		t.Fatal(err)
	}
	w.server = serverv3.NewServer(ctx, w.target, w.ledger)
	w.wg.Go(func() {
		if err := w.publisher.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); w.wg.Wait() })
	return w
}

func (w *world) join(p *proxy) *proxy {
	p.t, p.history = w.t, w.history
	if p.rand == nil {
		p.rand = rand.New(rand.NewPCG(1, 2))
	}
	w.wg.Go(func() { p.run(w.ctx, w.server) })
	return p
}

func (w *world) submit(v resources.View) {
	w.history.add(v)
	w.publisher.Submit(v)
}

// rest waits until the rollout is over and compares what was shown.
func (w *world) rest(want ...string) {
	w.t.Helper()
	for range 100 {
		synctest.Wait()
		if w.publisher.Status().Phase == "idle" {
			break
		}
		time.Sleep(time.Second)
	}
	time.Sleep(time.Second) // and what was shown last has arrived
	synctest.Wait()
	if got := w.target.shown(&w.seen); want != nil && !slices.Equal(got, want) {
		w.t.Fatalf("shown %q, want %q", got, want)
	}
}

func TestPhases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		p := w.join(&proxy{id: "n1", slow: 20 * time.Millisecond})
		cuts := []policies.Tokens{1000, 9000}
		w.submit(view(1, cuts, "a b", "c", "d e"))
		w.rest("cds 8, eds 8, lds 1, rds 1")
		if st := w.publisher.Status(); st.Epoch != 1 || len(st.Nodes) != 1 || st.Nodes[0].Epoch != 1 || !st.Nodes[0].Current {
			t.Errorf("status %+v", st)
		}
		w.submit(view(2, []policies.Tokens{1500, 9000}, "a b", "c", "d e"))
		w.rest("rds 1") // a boundary is one resource
		w.submit(view(3, cuts, "a", "b c", "d e"))
		w.rest("eds 1", "rds 1", "eds 1") // b joins s1, then routes, then b leaves s0
		w.submit(view(3, cuts, "a", "b c", "d e"))
		w.rest() // nothing is new
		heavy := view(3, cuts, "a", "b c", "d e")
		heavy.Endpoints[0].Weight = 50
		heavy.Endpoints[3].Health = resources.Unhealthy
		w.submit(heavy)
		w.rest("eds 8") // every stage knows everybody's health; no routes, no second step
		heavy.Endpoints = slices.Clone(heavy.Endpoints)
		heavy.Endpoints[0].Weight = 40
		w.submit(heavy)
		w.rest("eds 1") // weights matter to the stage and to the shorter one
		before := p.received()
		w.submit(heavy)
		w.rest()
		if p.received() != before {
			t.Error("an unchanged view was sent")
		}
		if st := w.publisher.Status(); st.Epoch != 3 || st.Nodes[0].Epoch != 3 || !st.Nodes[0].Current || st.Err != nil {
			t.Errorf("status %+v", st)
		}
		if p.checked == 0 {
			t.Error("the proxy checked nothing")
		}
	})
}

func TestModelComesAndGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		w.join(&proxy{id: "n1", slow: 20 * time.Millisecond})
		one := view(1, nil, "a b")
		w.submit(one)
		w.rest("cds 8, eds 8, lds 1, rds 1")
		two := view(1, nil, "a b")
		two.Models = append(two.Models, resources.Model{Name: "z", Context: 100})
		two.Plans = append(two.Plans, policies.Plan{Model: "z", Epoch: 2, Stages: policies.OneStagePlan("z", []policies.ReplicaID{"q"}).Stages})
		two.Endpoints = append(two.Endpoints, endpoint("z", "q"))
		w.submit(two)
		w.rest("cds 8, eds 8", "rds 1")
		w.submit(one)
		w.rest("rds 1", "cds 8, eds 8") // routes leave first, then what they led to
	})
}

func TestBadViewKeepsTheLastGoodOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		w.submit(view(1, nil, "a b"))
		w.rest("cds 8, eds 8, lds 1, rds 1")
		bad := view(2, nil, "a b")
		bad.Endpoints[1].Address = bad.Endpoints[0].Address
		w.submit(bad)
		w.rest()
		st := w.publisher.Status()
		if st.Epoch != 1 || st.Err == nil || !strings.Contains(st.Err.Error(), "same address") {
			t.Errorf("status %+v", st)
		}
		w.submit(view(3, nil, "a"))
		w.rest("rds 1", "eds 8") // b leaves only when nobody routes to it
		if st := w.publisher.Status(); st.Err != nil || st.Epoch != 3 {
			t.Errorf("status %+v", st)
		}
	})
}

// TestStraggler has one node that never answers: it delays one rollout by the
// bound, is fenced, and delays nobody after that.
func TestStraggler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bound = 2 * time.Second
		w := newWorld(t, bound)
		w.join(&proxy{id: "good", slow: time.Millisecond})
		w.submit(view(1, []policies.Tokens{10}, "a", "b c"))
		w.rest()
		hung := w.join(&proxy{id: "hung", slow: 1000 * time.Hour})
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
			t.Errorf("the first rollout took %v, want the bound of %v once", took, bound)
		}
		for e := policies.Epoch(3); e < 10; e++ {
			stages := []string{"a b", "c"}
			if e%2 == 1 {
				stages = []string{"a", "b c"}
			}
			w.submit(view(e, []policies.Tokens{10}, stages...))
			if took := waitFor(e); took > bound/2 {
				t.Errorf("rollout %d took %v beside a fenced node", e, took)
			}
		}
		st := w.publisher.Status()
		i := slices.IndexFunc(st.Nodes, func(n publish.Node) bool { return n.ID == "hung" })
		if n := st.Nodes[i]; !n.Fenced || n.Current || n.Epoch != 0 {
			t.Errorf("status of the straggler: %+v", n)
		}
		_ = hung
	})
}

// TestObserver has a node that never answers and says that it only looks on: no
// rollout waits for it, and it is not fenced.
func TestObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2*time.Second)
		w.join(&proxy{id: "good", slow: time.Millisecond})
		w.join(&proxy{id: "looks", cluster: resources.ObserverCluster, slow: 1000 * time.Hour})
		w.submit(view(1, []policies.Tokens{10}, "a", "b c"))
		w.rest()
		start := time.Now()
		w.submit(view(2, []policies.Tokens{10}, "a b", "c"))
		for w.publisher.Status().Epoch != 2 || w.publisher.Status().Phase != "idle" {
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("the rollout took %v beside an observer", took)
		}
		for _, n := range w.publisher.Status().Nodes {
			if n.Observer != (n.ID == "looks") || n.Fenced {
				t.Errorf("status: %+v", n)
			}
		}
	})
}

// scripted is a Target whose nodes are late when the test says so.
type scripted struct {
	mu      sync.Mutex
	late    []string
	changed chan struct{}
}

func (s *scripted) Set(string, resources.Set) {}
func (s *scripted) Changed() <-chan struct{}  { return s.changed }

func (s *scripted) Unanswered(_ []string, ids map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range s.late {
		ids[id] = true
	}
}

func (s *scripted) set(late ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late = late
}

// TestBoundIsTheNodes: a table that replaces another within a phase gives the
// nodes that had caught up a bound of their own, and none to who had not; the
// phase ends all the same when somebody is late in turn for ever.
func TestBoundIsTheNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bound = 2 * time.Second
		target := &scripted{changed: make(chan struct{})}
		ledger := publish.NewLedger(nil)
		for i, id := range []string{"hung", "good", "x", "y"} {
			// The ledger knows them, and the target who is late.
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
			target.set(late...)
			target.changed <- struct{}{}
			synctest.Wait()
		}
		submit("a", "b")
		phaseAt(0, "idle")

		target.set("hung", "good")
		submit("a", "b c")
		phaseAt(bound/2, "add")
		answer("hung")
		target.set("hung", "good")
		phaseAt(bound-1, "add")
		submit("a", "b c d") // good is late for this one alone
		phaseAt(bound, "add")
		phaseAt(2*bound-2, "add")
		answer("hung")
		phaseAt(2*bound-2, "idle")

		// Each of two is late in turn, and the phase never settles.
		begun = time.Now()
		target.set("x")
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

// TestNACK has a node that refuses a route table: it is taken back at once and
// never sent again, and a table with other bytes is tried.
func TestNACK(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, time.Second)
		refused := make(map[string]int)
		bad := w.join(&proxy{id: "picky", slow: time.Millisecond})
		w.submit(view(1, []policies.Tokens{10}, "a", "b"))
		w.rest()
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
		w.rest("rds 1", "rds 1") // and back
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
			t.Error("the proxy lost its last good routes")
		}
		// Health flows on, over the plan that it has.
		two.Endpoints = slices.Clone(two.Endpoints)
		two.Endpoints[0].Health = resources.Unhealthy
		w.submit(two)
		w.rest("eds 8")
		bad.refuse(nil)
		two.Endpoints = slices.Clone(two.Endpoints)
		two.Endpoints[0].Health = resources.Healthy
		w.submit(two)
		w.rest("eds 8")
		w.submit(view(3, []policies.Tokens{30}, "a", "b"))
		w.rest("rds 1")
		if n := w.publisher.Status().Nodes[0]; n.Epoch != 3 || n.Fenced || !n.Current || n.Why != "" || len(refused) != 1 {
			t.Errorf("refused %v, status %+v", refused, n)
		}
	})
}

// TestRestart restarts the control plane under a proxy: the same view sends no
// resource again.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := view(1, []policies.Tokens{10}, "a", "b c")
		w := newWorld(t, 0)
		p := w.join(&proxy{id: "n1", slow: time.Millisecond, breaks: 0})
		w.submit(v)
		w.rest()
		before := p.received()
		if before == 0 {
			t.Fatal("nothing was received")
		}
		again := newWorld(t, 0)
		again.history = w.history
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		q := &proxy{t: t, id: "n1", slow: time.Millisecond, history: w.history, rand: rand.New(rand.NewPCG(3, 4))}
		wg.Go(func() {
			q.has = p.has
			for ctx.Err() == nil {
				q.session(ctx, again.server)
			}
		})
		time.Sleep(time.Second) // it asks before there is anything
		again.submit(v)
		again.rest()
		if q.received() != 0 {
			t.Errorf("%d resources were sent again", q.received())
		}
		if n := again.publisher.Status().Nodes[0]; n.Epoch != 1 || !n.Current {
			t.Errorf("status %+v", n)
		}
		again.submit(view(2, []policies.Tokens{20}, "a", "b c"))
		again.rest("rds 1")
		if q.received() != 1 {
			t.Errorf("%d resources for a new boundary", q.received())
		}
		cancel()
		wg.Wait()
	})
}

// TestRandomRollouts moves replicas, cuts, models, health and weights at
// random under proxies that are slow and whose streams break, and has every
// proxy check after every message that its routes lead to the right replicas.
func TestRandomRollouts(t *testing.T) {
	for seed := range uint64(times(2, 8)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { randomRollouts(t, seed) })
		})
	}
}

func randomRollouts(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 7))
	w := newWorld(t, 3*time.Second)
	var proxies []*proxy
	for i := range 4 {
		proxies = append(proxies, w.join(&proxy{
			id: fmt.Sprint("n", i), slow: time.Duration(1+50*i) * time.Millisecond, breaks: float64(i) * 0.01,
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
	w.rest()
	time.Sleep(10 * time.Second)
	synctest.Wait()
	st := w.publisher.Status()
	if st.Err != nil {
		t.Fatal(st.Err)
	}
	for i, p := range proxies {
		if p.checked < 15 {
			t.Errorf("%s checked %d times", p.id, p.checked)
		}
		if n := st.Nodes[i]; !n.Current || n.Epoch != st.Epoch {
			t.Errorf("after all: %+v, want epoch %d", n, st.Epoch)
		}
	}
}

// mutate changes something.
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
	case 2: // one is removed
		if len(endpoints) > 3 {
			i := r.IntN(len(endpoints))
			endpoints = slices.Delete(endpoints, i, i+1)
		}
	}
	// A new plan over who is there.
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
