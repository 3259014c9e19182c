package publish_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/resources"
)

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

// TestAckTimeoutPerNode checks that a snapshot which replaces another within a
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
	w := startHarness(t, publish.Config{AckTimeout: 3 * time.Second})
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
