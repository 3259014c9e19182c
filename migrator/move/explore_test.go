package move

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// stepRandom does one random thing.
func (w *fleet) stepRandom(quiet bool) {
	defer w.check()
	if !quiet {
		w.injectFault()
	}
	n := w.any()
	switch k := w.rng.IntN(10); {
	case k < 5 && len(w.flight) > 0 && !w.chance(w.faults.slow):
		at := 0
		if w.chance(300) {
			at = w.rng.IntN(len(w.flight))
		}
		msg := w.flight[at]
		double := !quiet && w.chance(w.faults.double)
		if !double {
			w.flight = slices.Delete(w.flight, at, at+1)
		}
		if to := w.node(msg.To); to.machine != nil && !w.partitioned(msg.From, msg.To) && (quiet || !w.chance(w.faults.lose)) {
			w.step(to, Event{Kind: Received, Message: msg})
		}
	case k < 9 && len(n.jobs) > 0 && !n.paused:
		w.work(n)
	default:
		w.tick()
	}
}

// tick lets time pass: to the next deadline, or a little.
func (w *fleet) tick() {
	until := w.now + policies.Micros(1+w.rng.IntN(20))*policies.Millisecond
	if len(w.flight) == 0 || w.chance(100) {
		until = w.now + 300*policies.Millisecond
	}
	for _, n := range w.nodes {
		if at, ok := n.machine.Next(); ok && !n.paused {
			until = min(until, max(at, w.now))
		}
	}
	w.now = max(w.now, until)
	for _, n := range w.nodes {
		if at, ok := n.machine.Next(); ok && at <= w.now {
			w.step(n, Event{Kind: Ticked})
		}
		for _, l := range n.legs {
			if !l.frozen && w.chance(200) {
				l.computed += uint64(w.rng.IntN(20))
			}
		}
	}
	// A replica that is away for two seconds is gone.
	for _, a := range w.nodes {
		if a.paused && !a.goneReported && w.now-a.since > 2*policies.Second {
			a.goneReported = true
			w.informAll(a)
		}
		for _, b := range w.nodes {
			if since, ok := w.cut[[2]policies.ReplicaID{a.id, b.id}]; ok && !a.paused && w.now-since > 2*policies.Second {
				w.cut[[2]policies.ReplicaID{a.id, b.id}] = 1 << 60 // once
				w.peerGone(a, b.id)
			}
		}
	}
}

// informAll reports to all others that n is gone.
func (w *fleet) informAll(n *node) {
	for _, o := range w.nodes {
		if o != n && !o.paused {
			w.peerGone(o, n.id)
		}
	}
}

// injectFault injects a random fault.
func (w *fleet) injectFault() {
	n, o := w.any(), w.any()
	if w.chance(w.faults.crowd) {
		w.begin()
	}
	switch {
	case w.chance(w.faults.kill):
		w.note("%s is killed", n.id)
		for _, s := range w.streams {
			s.ended = s.ended || s.front == n.id
		}
		for _, l := range n.legs {
			l.orphan = true
		}
		w.boot(n)
		w.informAll(n)
	case w.chance(w.faults.pause) && !n.paused:
		w.note("%s is paused", n.id)
		n.paused, n.goneReported, n.since = true, false, w.now
	case w.chance(w.faults.pause) && n.paused:
		w.resume(n)
	case w.chance(w.faults.cut) && n != o:
		w.note("%s and %s: the link changes", n.id, o.id)
		w.setPartition(n.id, o.id, !w.partitioned(n.id, o.id))
	case w.chance(w.faults.end):
		names := w.names()
		w.end(names[w.rng.IntN(len(names))])
	case w.chance(w.faults.preempt):
		for _, l := range n.legs {
			if !l.frozen {
				l.generation++
			}
		}
	case w.chance(w.faults.abort):
		for d := range n.open { // of one at most, or the map's order would show
			if len(n.open) == 1 {
				w.step(n, Event{Kind: AbortRequested, Deal: d})
			}
		}
	}
}

func (w *fleet) resume(n *node) {
	w.note("%s goes on", n.id)
	n.paused = false
	backlog := n.backlog
	n.backlog = nil
	for _, l := range slices.Clone(n.legs) {
		if l.orphan {
			n.end(l) // its front end has hung up
		}
	}
	for _, ev := range backlog {
		w.step(n, ev)
	}
	if w.now-n.since > 2*policies.Second {
		for _, o := range w.nodes {
			if o != n {
				w.peerGone(n, o.id)
			}
		}
	}
}

// end ends a request: its client has left, or it has all its tokens.
func (w *fleet) end(name string) {
	if s := w.streams[name]; !s.ended {
		w.note("%s ends", name)
		s.ended = true
		w.hangUp(w.node(s.front), s)
	}
}

// begin has the market start a migration.
func (w *fleet) begin() {
	names := w.names()
	name := names[w.rng.IntN(len(names))]
	s := w.streams[name]
	source, target := w.node(s.holder), w.any()
	l := s.leg
	if !slices.Contains(source.legs, l) || l.orphan || source == target || source.paused || target.paused {
		return
	}
	w.number++
	d := bidask.Deal{Seller: source.id, Number: w.number}
	target.kv[d] = &reservation{}
	engine := KVFormat{Fingerprint: 7, BlockTokens: 16}
	other := engine
	if w.chance(200) {
		other = KVFormat{}
	}
	// One of the two may never learn of it.
	if !w.chance(w.faults.lose) {
		source.open[d]++
		source.moving[d] = l
		w.step(source, Event{Kind: ExportStarted, Deal: d, Peer: target.id, Engine: engine, Transports: []string{"shm"},
			Request: Request{ID: name, FrontEnd: s.front, Epoch: s.epoch - min(s.epoch-1, policies.Epoch(w.rng.IntN(10)/9*2)), Length: l.computed + 1}})
	}
	if w.chance(w.faults.lose) {
		delete(target.kv, d) // the market's lease ends
		return
	}
	target.open[d]++
	w.step(target, Event{Kind: ImportStarted, Deal: d, Peer: source.id, Engine: other, Transports: []string{"shm"}})
}

// settle ends all faults and lets what is under way end.
func (w *fleet) settle() {
	w.cut = map[[2]policies.ReplicaID]policies.Micros{}
	w.faults = faults{}
	for _, n := range w.nodes {
		if n.paused {
			w.resume(n)
		}
		for _, l := range slices.Clone(n.legs) {
			if l.orphan || w.streams[l.request].ended {
				n.end(l)
			}
		}
	}
	for range 100_000 {
		idle := len(w.flight) == 0
		for _, n := range w.nodes {
			idle = idle && n.machine.Idle() && len(n.jobs) == 0
		}
		if idle {
			break
		}
		w.stepRandom(true)
	}
	for _, n := range w.nodes {
		w.require(n.machine.Idle() && len(n.jobs) == 0, "%s does not come to an end", n.id)
		w.require(len(n.kv) == 0, "%s holds %d reservations", n.id, len(n.kv))
		w.require(len(n.open) == 0, "%s has %d moves open", n.id, len(n.open))
		for _, l := range n.legs {
			w.require(!l.frozen, "%s: %s is frozen for ever", n.id, l.request)
			w.require(w.streams[l.request].leg == l, "%s: a leg of %s is left over", n.id, l.request)
		}
	}
	for name, s := range w.streams {
		w.require(!s.pending || s.ended, "%s is pending for ever", name)
		w.require(s.ended || slices.Contains(w.node(s.holder).legs, s.leg), "%s does not run at %s", name, s.holder)
	}
}

func run(seed uint64, f faults, steps int) (w *fleet, err error) {
	w = newFleet(seed, f)
	defer func() {
		if r := recover(); r != nil {
			why, ok := r.(failure)
			if !ok {
				panic(r)
			}
			tail := w.log[max(0, len(w.log)-200):]
			err = fmt.Errorf("seed %d: %s\n%s", seed, why, strings.Join(tail, "\n"))
		}
	}()
	for range steps {
		w.stepRandom(false)
	}
	w.settle()
	return w, nil
}

// TestFleet explores migrations under faults of every kind, alone and together.
func TestFleet(t *testing.T) {
	runs := 25
	if os.Getenv("CASCADE_TEST_ALL") != "" {
		runs = 5000
	}
	for name, f := range map[string]faults{
		"none":      {crowd: 20},
		"loss":      {crowd: 20, lose: 100, double: 100},
		"slow":      {crowd: 20, slow: 500, double: 300},
		"kill":      {crowd: 20, kill: 2, lose: 10},
		"pause":     {crowd: 20, pause: 5, lose: 10},
		"partition": {crowd: 20, cut: 10},
		"engine":    {crowd: 20, refuse: 100, corrupt: 200, preempt: 5},
		"market":    {crowd: 40, abort: 20},
		"ends":      {crowd: 20, end: 1},
		"all":       {crowd: 20, lose: 20, double: 20, kill: 1, pause: 2, cut: 3, refuse: 20, corrupt: 100, preempt: 2, end: 1, abort: 2, slow: 50},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			moves, ends := 0, map[string]int{}
			for seed := range uint64(runs) {
				w := testkit.Must(run(seed, f, 2000))
				moves += w.moves
				for why, n := range w.ends {
					ends[why] += n
				}
			}
			t.Logf("%d moves; ends: %v", moves, ends)
			if moves == 0 {
				t.Error("nothing moved")
			}
		})
	}
}
