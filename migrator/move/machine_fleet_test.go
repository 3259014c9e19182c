package move

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// fleet is a few replicas whose messages, engines, front ends and transports behave
// randomly. It is the driver of every machine, and checks their actions against its
// own record of which leg generates for which stream.
type fleet struct {
	rng     *rand.Rand
	faults  faults
	now     policies.Micros
	nodes   []*node
	flight  []Message
	streams map[string]*stream
	cut     map[[2]policies.ReplicaID]policies.Micros // when a link was cut; both orders
	number  uint64
	moves   int
	ends    map[string]int // of migrations, by side and reason
	log     []string
}

// faults are chances in per mille, of each step or each action.
type faults struct{ lose, double, kill, pause, cut, refuse, corrupt, preempt, end, abort, slow, crowd int }

// node is one replica: its machine, its driver and its engine.
type node struct {
	id           policies.ReplicaID
	machine      *Machine
	paused       bool
	since        policies.Micros
	goneReported bool // Gone was sent to the others
	backlog      []Event
	jobs         []*simulatedJob
	legs         []*leg
	moving       map[bidask.Deal]*leg // what an export is about
	kv           map[bidask.Deal]*reservation
	open         map[bidask.Deal]int // migrations begun here and not ended
}

// simulatedJob is an action that takes time. Jobs of one migration and role are done in order.
type simulatedJob struct {
	a    Action
	role string
	half bool // a Commit whose register is pending
}

// leg is a request in an engine.
type leg struct {
	request    string
	computed   uint64
	generation uint64
	frozen     bool
	orphan     bool // its front end has closed it and cannot reach the engine
}

// reservation is what a target's engine holds for a migration.
type reservation struct {
	computed, generation uint64
	last                 bool
}

// stream is a request as its front end knows it.
type stream struct {
	front, holder policies.ReplicaID
	epoch         policies.Epoch
	leg           *leg // the holder's
	pending       bool
	ended         bool
}

func newFleet(seed uint64, f faults) *fleet {
	w := &fleet{rng: rand.New(rand.NewPCG(seed, 4)), faults: f, streams: map[string]*stream{}, cut: map[[2]policies.ReplicaID]policies.Micros{}, ends: map[string]int{}}
	for i := range 3 + w.rng.IntN(2) {
		n := &node{id: policies.ReplicaID(rune('a' + i))}
		w.nodes = append(w.nodes, n)
		w.boot(n)
	}
	for i := range 2 + w.rng.IntN(4) {
		front, holder := w.any(), w.any()
		name := fmt.Sprintf("q%d", i)
		l := &leg{request: name, computed: uint64(10 + w.rng.IntN(300)), generation: uint64(w.rng.IntN(2))}
		w.streams[name] = &stream{front: front.id, holder: holder.id, epoch: 1, leg: l}
		holder.legs = append(holder.legs, l)
	}
	return w
}

func (w *fleet) boot(n *node) {
	m := testkit.Must(newMachine(Limits{Self: n.id, TailBlocks: 1 + w.rng.IntN(4)}))
	*n = node{id: n.id, machine: m, moving: map[bidask.Deal]*leg{}, kv: map[bidask.Deal]*reservation{}, open: map[bidask.Deal]int{}}
}

func (w *fleet) any() *node                       { return w.nodes[w.rng.IntN(len(w.nodes))] }
func (w *fleet) node(id policies.ReplicaID) *node { return w.nodes[id[0]-'a'] }
func (w *fleet) chance(perMille int) bool         { return w.rng.IntN(1000) < perMille }
func (w *fleet) partitioned(a, b policies.ReplicaID) bool {
	_, ok := w.cut[[2]policies.ReplicaID{a, b}]
	return ok
}
func (w *fleet) note(format string, args ...any) {
	w.log = append(w.log, millis(w.now)+" "+fmt.Sprintf(format, args...))
}
func (w *fleet) setPartition(a, b policies.ReplicaID, c bool) {
	for _, k := range [][2]policies.ReplicaID{{a, b}, {b, a}} {
		if c {
			w.cut[k] = w.now
		} else {
			delete(w.cut, k)
		}
	}
}

// failure is what a broken invariant panics with; run turns it into an error.
type failure string

func (w *fleet) require(ok bool, format string, args ...any) {
	if !ok {
		panic(failure(fmt.Sprintf(format, args...)))
	}
}

// step passes an event to a machine and queues its actions.
func (w *fleet) step(n *node, ev Event) (admitted bool) {
	if n.paused {
		n.backlog = append(n.backlog, ev)
		return false
	}
	ev.Now = w.now
	w.note("%s: event %d %v, %v %v from %s, peer %s, round %d, answer %v, why %v", n.id, ev.Kind, ev.Deal, ev.Message.Kind, ev.Message.Deal, ev.Message.From, ev.Peer, ev.Round, ev.Answer, ev.Failure)
	actions := n.machine.Step(ev)
	if err := n.machine.Check(); err != nil {
		w.require(false, "%s: %v", n.id, err)
	}
	for _, a := range actions {
		w.log = append(w.log, "    "+describe(a))
		role := "target"
		if a.Deal.Seller == n.id {
			role = "source"
		}
		switch a.Kind {
		case Send:
			w.require(a.Message.From == n.id && a.Message.To != n.id, "message %+v from %s", a.Message, n.id)
			w.flight = append(w.flight, a.Message)
		case AllowAdopt:
			admitted = true
		case DenyAdopt:
		case Completed, Failed:
			w.require(n.open[a.Deal] == 1, "%s ends %v, which is open %d times", n.id, a.Deal, n.open[a.Deal])
			delete(n.open, a.Deal)
			w.ends[role+" "+a.Failure.String()]++
			w.require((a.Kind == Failed) == (a.Failure != 0) || role == "target", "%s: %v of %v without a reason", n.id, a.Kind, a.Deal)
		case SwitchHolder, LookUpHolder:
			n.jobs = append(n.jobs, &simulatedJob{a: a, role: "front"})
		case Thaw, Drop, Release, Revoke:
			n.jobs = slices.DeleteFunc(n.jobs, func(j *simulatedJob) bool {
				return j.a.Deal == a.Deal && j.role == role && (j.a.Kind == List || j.a.Kind == Prepare || j.a.Kind == Pull)
			})
			n.jobs = append(n.jobs, &simulatedJob{a: a, role: role})
		default:
			w.require(n.open[a.Deal] == 1, "%s: %v for %v, which is not open", n.id, a.Kind, a.Deal)
			n.jobs = append(n.jobs, &simulatedJob{a: a, role: role})
		}
	}
	return admitted
}

// work takes one simulatedJob that may be done now a step on.
func (w *fleet) work(n *node) {
	at := w.rng.IntN(len(n.jobs))
	for i, j := range n.jobs[:at] {
		if j.role == n.jobs[at].role && j.a.Deal == n.jobs[at].a.Deal {
			at = i // in order
			break
		}
	}
	j := n.jobs[at]
	finish := func(ev Event) {
		n.jobs = slices.DeleteFunc(n.jobs, func(o *simulatedJob) bool { return o == j })
		if ev.Kind != 0 {
			ev.Deal = j.a.Deal
			w.step(n, ev)
		}
	}
	refused := Event{Kind: ActionFailed, Failure: EngineRefused}
	l, kv := n.moving[j.a.Deal], n.kv[j.a.Deal]
	if !slices.Contains(n.legs, l) {
		l = nil
	}
	w.note("%s works: %s", n.id, describe(j.a))
	switch j.a.Kind {
	case List, Freeze:
		switch {
		case l == nil:
			finish(Event{Kind: ActionFailed, Failure: RequestEnded})
		case w.chance(w.faults.refuse):
			l.frozen = l.frozen || j.a.Kind == Freeze && w.chance(500) // only the answer is lost
			finish(refused)
		case j.a.Kind == List:
			finish(Event{Kind: Listed, Span: Span{From: j.a.Span.From, Computed: l.computed / 16 * 16, Generation: l.generation}})
		default:
			w.require(!l.frozen, "%s freezes %s twice", n.id, j.a.Request)
			l.frozen = true
			finish(Event{Kind: Frozen, Span: Span{From: j.a.Span.From, Computed: l.computed, Length: l.computed + 1, Generation: l.generation, Hash: 1}})
		}
	case Thaw, Drop:
		if w.chance(w.faults.refuse) {
			return // and again
		}
		if l != nil {
			l.frozen = false
			if j.a.Kind == Drop {
				n.end(l)
			}
		}
		finish(Event{})
	case Revoke:
		finish(Event{})
	case Prepare:
		if kv == nil || w.chance(w.faults.refuse) {
			finish(Event{Kind: ActionFailed, Failure: OutOfBlocks})
			return
		}
		finish(Event{Kind: Prepared})
	case Pull:
		w.require(kv != nil && !kv.last, "%s pulls into nothing", n.id)
		switch {
		case w.chance(w.faults.corrupt):
			finish(Event{Kind: ActionFailed, Failure: ChecksumMismatch})
		case w.chance(w.faults.refuse), w.partitioned(n.id, j.a.Peer):
			finish(Event{Kind: ActionFailed, Failure: NoTransport})
		default:
			w.require(j.a.Span.From == kv.computed, "%s pulls %v from %d, has %d", n.id, j.a.Deal, j.a.Span.From, kv.computed)
			w.require(kv.computed == 0 || kv.generation == j.a.Span.Generation, "%s pulls %v of two generations", n.id, j.a.Deal)
			kv.computed, kv.generation, kv.last = j.a.Span.Computed, j.a.Span.Generation, j.a.Last
			finish(Event{Kind: Verified, Round: j.a.Round})
		}
	case Release:
		delete(n.kv, j.a.Deal)
		finish(Event{})
	case LookUpHolder:
		ev := Event{Kind: HolderResult}
		switch s := w.streams[j.a.Request]; {
		case s == nil || s.ended || s.front != n.id:
			ev.Answer = Ended
		case s.pending:
			ev.Answer = Pending
		case s.holder == j.a.Peer:
			ev.Answer, ev.Epoch = Reverted, s.epoch
		default:
			ev.Answer = Rejected
		}
		finish(ev)
	case SwitchHolder:
		w.commit(n, j, finish)
	}
}

// commit switches a stream at its front end: first the register, then the leg.
func (w *fleet) commit(n *node, j *simulatedJob, finish func(Event)) {
	msg := j.a.Message
	ev := Event{Kind: SwitchResult}
	s := w.streams[msg.Request]
	if !j.half {
		switch {
		case s == nil || s.ended || s.front != n.id:
			ev.Answer = Ended
			finish(ev)
		case s.pending || s.holder != msg.From || s.epoch != msg.Epoch:
			ev.Answer = Rejected
			finish(ev)
		default:
			w.require(msg.Mode == Reprompt || s.leg.orphan || s.leg.frozen && s.leg.computed+1 == msg.Length, "%s swaps %s, which runs", msg.From, msg.Request)
			s.pending, s.epoch, j.half = true, s.epoch+1, true
		}
		return
	}
	if s.ended {
		s.pending, ev.Answer = false, Ended
		finish(ev)
		return
	}
	w.require(s.pending, "%s is handed over, and not pending", msg.Request)
	s.pending = false
	target := w.node(msg.Target)
	ok := !target.paused && !w.partitioned(n.id, target.id) && w.now < j.a.Deadline && !w.chance(w.faults.refuse)
	fresh := &leg{request: msg.Request, computed: msg.Length}
	if ok && msg.Mode == Live {
		old := s.leg
		if ok = w.step(target, Event{Kind: AdoptRequested, Deal: msg.Deal, Peer: n.id, Request: Request{ID: msg.Request}}); ok {
			kv := target.kv[msg.Deal]
			w.require(kv != nil && kv.last && kv.computed+1 == msg.Length, "%s adopts %v unverified: %+v", target.id, msg.Deal, kv)
			w.require(old.orphan || old.frozen && old.computed == kv.computed && old.generation == kv.generation, "%s adopts a stale %v: %+v, not %+v", target.id, msg.Deal, kv, old)
			ok = !w.chance(w.faults.refuse)
			if ok {
				delete(target.kv, msg.Deal) // the request's now
			}
			fresh.computed = msg.Length - 1
		}
	}
	if !ok {
		s.epoch++
		ev.Answer, ev.Epoch = Reverted, s.epoch
		finish(ev)
		if s.leg.orphan {
			w.rescue(n, s) // the source's leg has broken meanwhile
		}
		return
	}
	if msg.Mode == Reprompt {
		w.hangUp(n, s)
	}
	s.holder, s.leg = target.id, fresh
	target.legs = append(target.legs, fresh)
	w.moves++
	ev.Answer, ev.Epoch = Committed, s.epoch
	finish(ev)
}

// hangUp closes a front end's connection to a leg.
func (w *fleet) hangUp(front *node, s *stream) {
	n := w.node(s.holder)
	if w.partitioned(front.id, n.id) || n.paused {
		s.leg.orphan = true
		return
	}
	n.end(s.leg)
}

// rescue continues a stream at its front end.
func (w *fleet) rescue(front *node, s *stream) {
	w.hangUp(front, s)
	s.holder, s.epoch, s.leg = front.id, s.epoch+2, &leg{request: s.leg.request, computed: 20}
	front.legs = append(front.legs, s.leg)
}

// end takes a leg out of an engine.
func (n *node) end(l *leg) {
	n.legs = slices.DeleteFunc(n.legs, func(o *leg) bool { return o == l })
	l.orphan = true // who still looks at it does not find it
}

// peerGone reports to a live replica that a peer is gone, and does what its stream
// layer makes of it: legs of a lost front end, streams held there are rescued.
func (w *fleet) peerGone(n *node, peer policies.ReplicaID) {
	for _, l := range slices.Clone(n.legs) {
		if w.streams[l.request].front == peer {
			n.end(l)
		}
	}
	for _, name := range w.names() {
		if s := w.streams[name]; s.front == n.id && s.holder == peer && !s.ended && !s.pending {
			w.rescue(n, s)
		}
	}
	w.step(n, Event{Kind: Gone, Peer: peer})
}

func (w *fleet) names() []string {
	var names []string
	for name := range w.streams {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// check verifies what must hold between any two steps.
func (w *fleet) check() {
	running := map[string]policies.ReplicaID{}
	for _, n := range w.nodes {
		for _, l := range n.legs {
			if !l.frozen && !l.orphan && !n.paused && !w.partitioned(n.id, w.streams[l.request].front) {
				other, twice := running[l.request]
				w.require(!twice, "%s runs at %s and %s", l.request, other, n.id)
				running[l.request] = n.id
			}
		}
	}
}
