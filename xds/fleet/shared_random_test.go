package fleet

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit/plantest"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

// peerState is one control plane of TestSharedStates.
type peerState struct {
	name      string
	state     *State
	version   int // of the object, as its state knows it
	delivered int // the last version that its watch delivered
	shown     *Snapshot
	planned   bool // its planning has run, and it does not know yet
}

// sharedStore is a store and the control planes that share it.
type sharedStore struct {
	t     *testing.T
	rng   *rand.Rand
	now   time.Time
	list  []policies.Replica
	saved []store.Object // the index is the version
	peers []*peerState
	calm  bool
	seed  uint64
}

// TestSharedStates runs three control planes on one store through random events:
// reports, orders, conflicts, failing and lost writes, lagging watches, restarts. At
// any time at most one of them plans, and only that one changes a plan without an
// order. The stored object is always valid, and no epoch decreases in the store or in
// any control plane. When everything is delivered, all publish the same.
func TestSharedStates(t *testing.T) {
	for seed := range uint64(25) {
		w := &sharedStore{t: t, rng: rand.New(rand.NewPCG(seed, 3)), now: start, saved: []store.Object{{}}, seed: seed}
		for _, id := range []string{"r0", "r1", "r2", "r3"} {
			w.list = append(w.list, testReplica(id))
		}
		for _, name := range []string{"a", "b", "c"} {
			p := &peerState{name: name}
			w.peers = append(w.peers, p)
			w.begin(p)
		}
		for round := range 400 {
			w.calm = round%100 >= 60
			w.round()
			if round%100 == 99 {
				w.requireSame()
			}
		}
		if len(w.saved) < 100 {
			t.Errorf("seed %d: only %d versions were stored", seed, len(w.saved))
		}
	}
}

func (w *sharedStore) begin(p *peerState) {
	rules := testRules(PolicyDefault)
	rules.Name, rules.Shared, rules.Seen = p.name, true, 10
	s, err := NewState(rules)
	if err != nil {
		w.t.Fatal(err)
	}
	p.state, p.shown, p.planned = s, nil, false
	p.version, p.delivered = len(w.saved)-1, len(w.saved)-1
	w.step(p, Stored{w.saved[p.version]}, false)
	w.step(p, Replicas{w.list}, false)
}

// step applies an event to a control plane and then stores its proposal, or lets the
// write fail.
func (w *sharedStore) step(p *peerState, ev Event, order bool) {
	e := p.state.Step(w.now, ev)
	for first := true; e.Propose != nil || e.Plan != nil; first = false {
		if p.show(w, e); e.Plan != nil {
			e.Plan.Run()
			if p.planned = !w.calm && w.rng.IntN(3) == 0; p.planned {
				break // it takes until the next round
			}
			e = p.state.Step(w.now, Planned{})
			continue
		}
		if len(e.Propose.Changes) > 0 && !p.state.leads(w.now) && !(order && first) {
			w.t.Fatalf("seed %d: %s follows, and changes the plan: %+v", w.seed, p.name, e.Propose.Changes)
		}
		if err := e.Propose.Object.Validate(); err != nil {
			w.t.Fatalf("seed %d: %v", w.seed, err)
		}
		fate := w.rng.IntN(30)
		if w.calm {
			fate = 9
		}
		if p.version != len(w.saved)-1 || fate == 0 {
			e = p.state.Step(w.now, NotStored{})
			continue
		}
		w.save(e.Propose.Object)
		if fate == 1 { // stored, but reported as failed: the watch will deliver it
			e = p.state.Step(w.now, NotStored{})
			continue
		}
		p.version = len(w.saved) - 1
		e = p.state.Step(w.now, Stored{e.Propose.Object})
	}
	p.show(w, e)
	leaders := ""
	for _, p := range w.peers {
		if p.state != nil && p.state.leads(w.now) {
			leaders += p.name
		}
	}
	if len(leaders) > 1 {
		w.t.Fatalf("seed %d: %s plan", w.seed, leaders)
	}
}

func (p *peerState) show(w *sharedStore, e Effects) {
	if e.Publish == nil {
		return
	}
	if p.shown != nil && e.Publish.Epoch < p.shown.Epoch {
		w.t.Fatalf("seed %d: %s shows epoch %d after %d", w.seed, p.name, e.Publish.Epoch, p.shown.Epoch)
	}
	p.shown = e.Publish
}

func (w *sharedStore) save(o store.Object) {
	before := w.saved[len(w.saved)-1]
	if o.Epoch < before.Epoch {
		w.t.Fatalf("seed %d: epoch %d is stored after %d", w.seed, o.Epoch, before.Epoch)
	}
	if len(before.Plans) > 0 && (len(o.Plans) == 0 || o.Plans[0].Epoch < before.Plans[0].Epoch) {
		w.t.Fatalf("seed %d: the plans %+v are stored after %+v", w.seed, o.Plans, before.Plans)
	}
	if len(before.Plans) > 0 && o.Plans[0].Epoch == before.Plans[0].Epoch && !planner.SameRouting(o.Plans[0], before.Plans[0]) {
		w.t.Fatalf("seed %d: two plans of epoch %d", w.seed, o.Plans[0].Epoch)
	}
	w.saved = append(w.saved, o)
}

// deliver delivers to a control plane the next version that another one wrote.
func (w *sharedStore) deliver(p *peerState) bool {
	for p.delivered < len(w.saved)-1 {
		p.delivered++
		if p.delivered > p.version {
			p.version = p.delivered
			w.step(p, Stored{w.saved[p.delivered]}, false)
			return true
		}
	}
	return false
}

// round simulates a quarter of a second.
func (w *sharedStore) round() {
	w.now = w.now.Add(250 * time.Millisecond)
	for _, i := range w.rng.Perm(len(w.peers)) {
		p := w.peers[i]
		if w.calm || w.rng.IntN(3) > 0 {
			for w.deliver(p) {
			}
		}
		if !w.calm && w.rng.IntN(12) == 0 {
			continue // this control plane does not run in this round
		}
		if !w.calm && w.rng.IntN(150) == 0 {
			w.begin(p)
		}
		if p.planned {
			p.planned = false
			w.step(p, Planned{}, false)
		}
		w.step(p, Tick{}, false)
	}
	// All control planes receive the report of a replica.
	r := w.list[w.rng.IntN(len(w.list))]
	report := loadreport.Report{
		Replica: r.ID, Model: "m", EngineReady: w.rng.IntN(6) > 0, Draining: w.rng.IntN(20) == 0,
		Load: policies.Load{Running: w.rng.IntN(60), Held: policies.Tokens(w.rng.IntN(90_000)), Iteration: 0.02},
		Flow: policies.Flow{Seen: 500}, BytesPerToken: 2 + 4*w.rng.Float64(),
	}
	for _, p := range w.peers {
		w.step(p, Reported{report}, false)
	}
	if w.rng.IntN(4) == 0 && !w.calm {
		w.order(w.peers[w.rng.IntN(len(w.peers))])
	}
}

func (w *sharedStore) order(p *peerState) {
	id := w.list[w.rng.IntN(len(w.list))].ID
	list := []fleetstate.Order{
		fleetstate.Drain{Replica: id}, fleetstate.Undrain{Replica: id}, fleetstate.Undrain{Replica: id}, fleetstate.Pin{Model: "m"}, fleetstate.Unpin{Model: "m"}, fleetstate.Unpin{Model: "m"},
		fleetstate.Rollback{Model: "m"}, fleetstate.Rollback{Model: "m", Keep: true},
		fleetstate.Refuse{Model: "m", Epoch: p.state.epoch, To: p.state.epoch - 1, Why: "a proxy refuses it"},
	}
	// An operator may store other stages, so that the orders have something to change.
	if o := w.saved[len(w.saved)-1]; len(o.Plans) > 0 && w.rng.IntN(6) == 0 {
		plan := plantest.Parse("r0 r1 | r2 r3")
		if w.rng.IntN(2) == 0 {
			plan = plantest.Parse("r0 | r1 | r2 r3")
		}
		o.Epoch++
		plan.Epoch = o.Epoch
		o.Plans = []policies.Plan{plan}
		w.save(o)
		return
	}
	if ev := (Ordered{Order: list[w.rng.IntN(len(list))]}); p.state.CheckOrder(w.now, ev) == nil {
		w.step(p, ev, true)
	} else if u := (*fleetstate.Unchecked)(nil); errors.As(p.state.CheckOrder(w.now, ev), &u) {
		ev.Allowed = u.After
		w.step(p, ev, true)
	}
}

// requireSame delivers updates until nothing changes, and requires that all publish the
// same.
func (w *sharedStore) requireSame() {
	for again := true; again; {
		again = false
		for _, p := range w.peers {
			for w.deliver(p) {
				again = true
			}
		}
	}
	first := w.peers[0].state.Snapshot(w.now).View(resources.Settings{})
	for _, p := range w.peers {
		if p.shown == nil {
			w.t.Fatalf("seed %d: %s shows nothing", w.seed, p.name)
		}
		if v := p.shown.View(resources.Settings{}); !reflect.DeepEqual(v, first) {
			w.t.Fatalf("seed %d: a has\n%+v\nand %s shows\n%+v", w.seed, first, p.name, v)
		}
		if p.state.lease == nil || len(p.state.object.Pins) != len(w.peers[0].state.object.Pins) {
			w.t.Fatalf("seed %d: pins differ", w.seed)
		}
	}
}
