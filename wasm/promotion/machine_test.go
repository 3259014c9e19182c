package promotion

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

// harness performs a machine's actions, at random times and with random outcomes, and
// checks the invariants of the package comment against the actions it received, not
// against the machine's fields.
type harness struct {
	t        *testing.T
	rng      *rand.Rand
	c        Config
	m        *Machine
	now      policies.Micros
	log      []any                // Events and Actions
	building lifecycle.Generation // the one being built; asked is the last action for it
	asked    ActionKind
	loaded   map[lifecycle.Generation]bool
	closed   map[lifecycle.Generation]bool
	over     map[lifecycle.Generation]bool // ended for good, for example by a fault in canary: must never be routed again
	stable   map[lifecycle.Generation]bool
	entered  map[lifecycle.Generation]policies.Micros // when the present phase began
	route    Route
	top      lifecycle.Generation // highest generation accepted
}

func newHarness(t *testing.T, seed uint64) *harness {
	rng := rand.New(rand.NewPCG(seed, 0x510))
	kinds := []lifecycle.Kind{lifecycle.BidSelect, lifecycle.BidQuote, lifecycle.Partition, lifecycle.Refine, lifecycle.Guard, lifecycle.Place}
	c := Config{Kind: kinds[rng.IntN(len(kinds))], Faults: 1 + rng.IntN(3), CanaryFaults: 1 + rng.IntN(2)}
	if rng.IntN(3) == 0 {
		c.Ladder = []int{}
	}
	m := testkit.Must(New(c))
	return &harness{t: t, rng: rng, c: m.c, m: m, loaded: map[lifecycle.Generation]bool{}, closed: map[lifecycle.Generation]bool{},
		over: map[lifecycle.Generation]bool{}, stable: map[lifecycle.Generation]bool{}, entered: map[lifecycle.Generation]policies.Micros{}}
}

func (w *harness) fail(format string, args ...any) {
	w.t.Helper()
	var log strings.Builder
	for _, x := range w.log[max(0, len(w.log)-40):] {
		if a, ok := x.(Action); ok {
			fmt.Fprintf(&log, "    %s %d %+v\n", a.Kind, a.Generation, a.Route)
		} else {
			fmt.Fprintf(&log, "%+v\n", x)
		}
	}
	w.t.Fatalf("%s\nthe last steps:\n%s", fmt.Sprintf(format, args...), &log)
}

// generation returns a random generation, mostly one that the machine knows.
func (w *harness) generation() lifecycle.Generation {
	s := w.m.Status()
	if len(s.Modules) == 0 || w.rng.IntN(8) == 0 {
		return lifecycle.Generation(w.rng.IntN(int(w.top) + 3))
	}
	return s.Modules[w.rng.IntN(min(len(s.Modules), 4))].Generation
}

func (w *harness) event() Event {
	ev := Event{Generation: w.generation()}
	switch n := w.rng.IntN(20); {
	case n < 8 && w.building != lifecycle.Native:
		ev.Generation = w.building
		ev.Kind = map[ActionKind]EventKind{Verify: Verified, Compile: Compiled, Warm: Warmed}[w.asked]
		if w.rng.IntN(10) == 0 {
			ev.Kind, ev.Reason = Failed, "bad luck"
		}
		if ev.Kind == Compiled {
			w.load(w.building)
		}
		w.building = lifecycle.Native
	case n < 9:
		ev.Kind = []EventKind{Verified, Compiled, Warmed, Failed}[w.rng.IntN(4)]
		if ev.Generation == w.building {
			ev.Kind = Ticked // the events of this build come from the case above
		}
	case n < 13:
		ev.Kind = Observed
		ev.Figures.Calls = uint64(w.rng.IntN(30_000))
		if w.rng.IntN(10) == 0 {
			ev.Figures.Worse = uint64(w.rng.IntN(1000))
			ev.Figures.Compared = uint64(w.rng.IntN(20_000))
		}
	case n < 14:
		ev.Kind = Faulted
	case n < 15:
		ev.Kind = []EventKind{Withdrawn, RolledBack}[w.rng.IntN(2)]
	case n < 17:
		ev.Kind = Offered
		o := Offer{Generation: ev.Generation, Goal: lifecycle.Goal(1 + w.rng.IntN(5)), Stable: w.rng.IntN(4) == 0}
		if w.c.Kind.PerRequest() {
			o.Permille = w.rng.IntN(400)
		} else if w.rng.IntN(3) > 0 {
			o.Scope = string(rune('a' + w.rng.IntN(2)))
		}
		if w.rng.IntN(4) == 0 {
			o.Until = w.now + policies.Micros(w.rng.IntN(30))*policies.Second
		}
		if w.rng.IntN(2) == 0 {
			o.Generation = w.top + lifecycle.Generation(1+w.rng.IntN(2))
		}
		ev.Offer, ev.Generation = o, o.Generation
	default:
		ev.Kind = Ticked
		w.now += policies.Micros(w.rng.IntN(20)) * policies.Second
	}
	ev.Now = w.now
	return ev
}

func (w *harness) step() {
	ev := w.event()
	before := w.route
	w.log = append(w.log, ev)
	actions, err := w.m.Step(ev, nil)
	if ev.Kind == Offered && err == nil {
		w.top = max(w.top, ev.Generation)
		// It counts as stable if it ever was: its goal may have changed in between.
		w.stable[ev.Generation] = w.stable[ev.Generation] || ev.Offer.Stable
	}
	for _, a := range actions {
		w.log = append(w.log, a)
		w.act(a)
	}
	if w.m.Route() != w.route {
		w.fail("the route is %+v and was last switched to %+v", w.m.Route(), w.route)
	}
	if ev.Kind == RolledBack && ev.Generation != lifecycle.Native && (ev.Generation == before.Active || ev.Generation == before.Candidate) {
		w.over[ev.Generation] = true
		w.check()
	}
	if n := len(w.loaded); n > 3 {
		w.fail("%d generations are loaded", n)
	}
}

func (w *harness) act(a Action) {
	g := a.Generation
	switch a.Kind {
	case Verify, Compile, Warm:
		if w.building != lifecycle.Native {
			w.fail("%s %d while %d is being built", a.Kind, g, w.building)
		}
		if w.over[g] {
			w.fail("%s of %d, which is over", a.Kind, g)
		}
		w.building, w.asked = g, a.Kind
	case Switch:
		if a.Route == w.route {
			w.fail("a switch to the same route")
		}
		w.judge(a.Route)
		w.route = a.Route
		w.check()
	case Close:
		if w.closed[g] {
			w.fail("%d is closed twice", g)
		}
		if g == w.route.Active || g == w.route.Candidate {
			w.fail("%d is closed and routed to", g)
		}
		w.closed[g] = true
		delete(w.loaded, g)
	}
}

// load marks a generation as loaded. One that was withdrawn before it ran may come back.
func (w *harness) load(g lifecycle.Generation) {
	w.loaded[g] = true
	delete(w.closed, g)
}

// judge checks a switch against the gates: a share grows by one step of the ladder, and
// only after the soak.
func (w *harness) judge(r Route) {
	g := r.Candidate
	if g == lifecycle.Native || w.stable[g] {
		return
	}
	if w.route.Candidate == g && r.Permille > w.route.Permille {
		for _, p := range w.c.Ladder {
			if w.route.Permille < p && p < r.Permille {
				w.fail("from %d to %d ‰, past %d", w.route.Permille, r.Permille, p)
			}
		}
	}
	first := 1000 // the largest share that needs no soak
	if len(w.c.Ladder) > 0 {
		first = w.c.Ladder[0]
	}
	if at, ok := w.entered[g]; ok && w.route.Candidate == g && r.Permille > max(first, w.route.Permille) && w.now-at < w.c.Canary.Soak {
		w.fail("%d went on after %d µs", g, w.now-at)
	}
	if r.Candidate != w.route.Candidate || r.Permille != w.route.Permille {
		w.entered[g] = w.now
	}
}

// check checks the generations of the route.
func (w *harness) check() {
	for _, g := range []lifecycle.Generation{w.route.Active, w.route.Candidate} {
		switch {
		case g == lifecycle.Native:
		case !w.loaded[g] || w.closed[g]:
			w.fail("the route names %d, which is not loaded", g)
		case w.over[g]:
			w.fail("the route names %d, which is over", g)
		}
	}
}

func TestRandomLives(t *testing.T) {
	seeds := uint64(300)
	if os.Getenv("CASCADE_TEST_ALL") != "" {
		seeds = 3000
	}
	switches := 0
	for seed := range seeds {
		w := newHarness(t, seed)
		for range 600 {
			w.step()
		}
		for _, l := range w.log {
			if a, ok := l.(Action); ok && a.Kind == Switch {
				switches++
			}
		}
		// At the end everything is rolled back or withdrawn, and nothing stays loaded.
		for range 20 {
			for _, g := range []lifecycle.Generation{w.route.Active, w.route.Candidate} {
				w.give(Event{Kind: RolledBack, Generation: g})
			}
			for _, l := range w.m.Status().Modules {
				w.give(Event{Kind: Withdrawn, Generation: l.Generation})
			}
			if g := w.building; g != lifecycle.Native {
				w.building = lifecycle.Native
				w.give(Event{Kind: Failed, Generation: g})
			}
		}
		for g := range w.loaded {
			if !w.closed[g] {
				w.fail("seed %d: %d stays loaded", seed, g)
			}
		}
	}
	if switches < int(seeds) {
		t.Errorf("only %d switches: the world is too hard to live in", switches)
	}
}

// give plays one event, in which nothing is random.
func (w *harness) give(ev Event) {
	ev.Now = w.now
	w.log = append(w.log, ev)
	actions, _ := w.m.Step(ev, nil)
	for _, a := range actions {
		w.act(a)
	}
}

func TestShares(t *testing.T) {
	r := Route{Active: 4, Candidate: 5, Permille: 100}
	for _, permille := range []int{0, 1, 10, 100, 999} {
		r.Permille = permille
		n := 0
		for i := range 100_000 {
			if r.ForRequest(HashRequest("request-"+strconv.Itoa(i))) == 5 {
				n++
			}
		}
		want := permille * 100
		if n < want-want/10-50 || n > want+want/10+50 {
			t.Errorf("%d ‰ of 1e5 is %d", permille, n)
		}
	}
	// A request that the candidate decides stays with it when the share grows.
	for i := range uint64(10_000) {
		small, large := r, r
		small.Permille, large.Permille = 10, 100
		if small.ForRequest(i) == 5 && large.ForRequest(i) != 5 {
			t.Fatalf("request %d left the candidate", i)
		}
	}
	scoped := Route{Active: 4, Candidate: 5, Scope: "a"}
	if scoped.ForScope("a") != 5 || scoped.ForScope("b") != 4 || scoped.ForScope("") != 4 || (Route{Active: 4, Candidate: 5}).ForScope("") != 4 {
		t.Error("a scope's canary")
	}
	if scoped.ForRequest(7) != 4 {
		t.Error("a scope's canary answers requests")
	}
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []Config{
		{}, {Kind: "configure"}, {Kind: "nonsense"}, {Kind: lifecycle.BidSelect, Ladder: []int{0}}, {Kind: lifecycle.BidSelect, Ladder: []int{5, 5}},
		{Kind: lifecycle.BidSelect, Ladder: []int{1000}}, {Kind: lifecycle.BidSelect, Faults: -1}, {Kind: lifecycle.BidSelect, Faults: MaxFaults + 1},
		{Kind: lifecycle.BidSelect, CanaryFaults: -1}, {Kind: lifecycle.BidSelect, Window: -1},
	} {
		if _, err := New(c); err == nil || !strings.HasPrefix(err.Error(), "promotion: ") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// FuzzMachine lets the fuzzer choose the seed.
func FuzzMachine(f *testing.F) {
	f.Add(uint64(1), uint16(100))
	f.Fuzz(func(t *testing.T, seed uint64, steps uint16) {
		w := newHarness(t, seed)
		for range min(steps, 2000) {
			w.step()
		}
	})
}
