package market

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/place"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fleet is a fleet in memory: markets, engines that hold requests, and an executor between them. It
// runs in a bubble of virtual time.
type fleet struct {
	t       *testing.T
	latency time.Duration // of a message, one way
	rate    float64       // tokens per second of one transfer
	fail    float64       // share of transfers that fail
	refuse  float64       // share of reservations that are rejected
	loss    float64       // share of messages that are lost
	edges   []policies.Tokens
	config  bidask.Rules
	// distance returns the distance of two replicas; nil: all distances are equal.
	distance func(from, to policies.ReplicaID) policies.Micros

	ids   []policies.ReplicaID
	nodes map[policies.ReplicaID]*replica

	mu       sync.Mutex
	rng      *rand.Rand
	messages int
	moves    int
}

// replica is an engine and its migrator.
type replica struct {
	*Market
	w         *fleet
	id        policies.ReplicaID
	requests  map[string]*request
	reserved  map[bidask.Deal]policies.Tokens
	exports   map[bidask.Deal]string // accepted by this replica
	imports   int
	exporting int
	view      View
}

type request struct {
	id     string
	length policies.Tokens
	since  time.Time
	epoch  policies.Epoch
	fixed  policies.PinReason
}

const capacity policies.Tokens = 1_000_000

func newFleet(t *testing.T, n int, change func(*fleet)) *fleet {
	w := &fleet{t: t, latency: 300 * time.Microsecond, rate: 100_000, nodes: make(map[policies.ReplicaID]*replica), rng: rand.New(rand.NewPCG(1, 2)),
		edges: policies.BucketEdges(1<<17, 4)}
	if change != nil {
		change(w)
	}
	for i := range n {
		id := policies.ReplicaID(fmt.Sprintf("r%d", i))
		r := &replica{w: w, id: id, requests: make(map[string]*request), reserved: make(map[bidask.Deal]policies.Tokens), exports: make(map[bidask.Deal]string)}
		var distance func(policies.ReplicaID, policies.Tokens) policies.Micros
		if w.distance != nil {
			distance = func(to policies.ReplicaID, length policies.Tokens) policies.Micros {
				return w.distance(id, to) * policies.Micros(length)
			}
		}
		m, err := New(Config{
			MigrationCost: func() func(policies.ReplicaID, policies.Tokens) policies.Micros { return distance },
			Self:          id, Machine: w.config, Executor: r, Network: r, Residents: r.residents, Load: r.load, Capacity: capacity,
			Detector: bidask.Detector{}, Placer: place.Policy{}, BucketEdges: w.edges,
		})
		testkit.NoError(t, err)
		r.Market = m
		w.ids, w.nodes[id] = append(w.ids, id), r
	}
	return w
}

// run runs the markets until the test function returns.
func (w *fleet) run(test func()) {
	ctx, stop := context.WithCancel(w.t.Context())
	var wg sync.WaitGroup
	for _, r := range w.nodes {
		wg.Go(func() {
			if err := r.Run(ctx); err != nil {
				w.t.Errorf("%s: %v", r.id, err)
			}
		})
	}
	test()
	stop()
	wg.Wait()
	time.Sleep(time.Minute) // for messages and transfers in progress
}

// plan sets the plan of all replicas.
func (w *fleet) plan(p policies.Plan) {
	w.t.Helper()
	testkit.NoError(w.t, p.Validate())
	for _, r := range w.nodes {
		r.view.Plan = p
		for _, id := range w.ids {
			if len(r.view.Peers) < len(w.ids) {
				r.view.Peers = append(r.view.Peers, policies.Replica{ID: id, Model: "m", Address: string(id), Peer: string(id)})
			}
		}
		r.SetView(r.view)
	}
}

// drain drains a replica in all views.
func (w *fleet) drain(which policies.ReplicaID, plan policies.Plan) {
	for _, r := range w.nodes {
		peers := append([]policies.Replica(nil), r.view.Peers...)
		for i := range peers {
			peers[i].Draining = peers[i].ID == which
		}
		r.view.Peers, r.view.Draining = peers, r.id == which
	}
	w.plan(plan)
}

// addRequest starts a request.
func (w *fleet) addRequest(at policies.ReplicaID, id string, length policies.Tokens, fixed policies.PinReason) {
	w.nodes[at].requests[id] = &request{id: id, length: length, since: time.Now().Add(-time.Minute), epoch: 1, fixed: fixed}
}

func (r *replica) residents() []frontend.LocalLeg {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	var out []frontend.LocalLeg
	for _, q := range r.requests {
		out = append(out, frontend.LocalLeg{
			Request: policies.Request{ID: q.id, Input: 1, Output: q.length - 1, MaxOutput: 1 << 20},
			Epoch:   q.epoch, Pinned: q.fixed, Since: q.since, Last: q.since,
		})
	}
	return out
}

func (r *replica) load() policies.Load {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	l := policies.Load{Running: len(r.requests), Iteration: 0.02}
	for _, q := range r.requests {
		l.Held += q.length
	}
	return l
}

// Send implements Network.
func (r *replica) Send(to policies.ReplicaID, e *api.Envelope) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	target := r.w.nodes[to]
	if target == nil {
		r.w.t.Errorf("%s sends to %q", r.id, to)
		return
	}
	if e.GetMarket() != nil {
		r.w.messages++
	}
	if r.w.rng.Float64() < r.w.loss {
		return
	}
	time.AfterFunc(r.w.latency, func() {
		switch b := e.Body.(type) {
		case *api.Envelope_Market:
			target.Receive(r.id, b.Market)
		case *api.Envelope_Summary:
			target.ReceiveSummary(r.id, b.Summary)
		}
	})
}

// Execute implements Executor.
func (r *replica) Execute(a bidask.Action) {
	w := r.w
	w.mu.Lock()
	defer w.mu.Unlock()
	answer := func(at *replica, k bidask.EventKind) { go at.Notify(bidask.Event{Kind: k, Deal: a.Deal}) }
	switch a.Kind {
	case bidask.Reserve:
		if _, twice := r.reserved[a.Deal]; twice {
			w.t.Errorf("%v is reserved twice", a.Deal)
		}
		if w.rng.Float64() < w.refuse {
			answer(r, bidask.ReservationRefused)
			return
		}
		r.reserved[a.Deal] = a.Migration.Length
		answer(r, bidask.Reserved)
	case bidask.Release:
		delete(r.reserved, a.Deal)
	case bidask.Export:
		r.exports[a.Deal] = a.Migration.Request
		r.exporting++
	case bidask.Import:
		if _, ok := r.reserved[a.Deal]; !ok {
			w.t.Errorf("%v is imported without a reservation", a.Deal)
		}
		r.imports++
		time.AfterFunc(time.Duration(float64(a.Migration.Length)/w.rate*float64(time.Second)), func() { r.arrive(a) })
	case bidask.Abort:
		// It is always too late: the transfer decides.
	default:
		w.t.Errorf("unexpected action %v", a.Kind)
	}
}

// arrive ends a transfer.
func (r *replica) arrive(a bidask.Action) {
	w := r.w
	w.mu.Lock()
	defer w.mu.Unlock()
	from := w.nodes[a.Deal.Seller]
	id, granted := from.exports[a.Deal]
	q := from.requests[id]
	end := bidask.TransferDone
	if !granted || q == nil || w.rng.Float64() < w.fail {
		end = bidask.TransferFailed
	}
	delete(from.exports, a.Deal)
	from.exporting--
	r.imports--
	if end == bidask.TransferDone {
		delete(from.requests, id)
		if q.fixed != policies.NotPinned {
			w.t.Errorf("%s is fixed and moves", id)
		}
		q.epoch++
		q.since = time.Now()
		r.requests[id] = q
		delete(r.reserved, a.Deal)
		w.moves++
	}
	go from.Notify(bidask.Event{Kind: end, Deal: a.Deal})
	go r.Notify(bidask.Event{Kind: end, Deal: a.Deal})
}

// count returns how many requests there are in the fleet.
func (w *fleet) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, r := range w.nodes {
		n += len(r.requests)
	}
	return n
}

// checkRested checks that nothing is left over once trading has paused.
func (w *fleet) checkRested() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.nodes {
		if len(r.reserved)+len(r.exports)+r.imports+r.exporting > 0 {
			w.t.Errorf("%s is left with %d reservations, %d exports, %d imports", r.id, len(r.reserved), len(r.exports), r.imports)
		}
	}
}

// stages returns a plan for a fleet, with the given cuts and the given number of replicas per
// stage.
func (w *fleet) stages(cuts []policies.Tokens, sizes ...int) policies.Plan {
	p := policies.Plan{Model: "m"}
	low, at := policies.Tokens(0), 0
	for i, n := range sizes {
		high := policies.Unbounded
		if i < len(cuts) {
			high = cuts[i]
		}
		p.Stages = append(p.Stages, policies.Stage{Low: low, High: high, Replicas: w.ids[at : at+n]})
		low, at = high, at+n
	}
	return p
}

// runFleet runs a test of a fleet of n replicas in virtual time.
func runFleet(t *testing.T, n int, change func(*fleet), test func(t *testing.T, w *fleet)) {
	synctest.Test(t, func(t *testing.T) { test(t, newFleet(t, n, change)) })
}
