package slothost

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

// harness changes a machine at random times in random ways, and checks what a slot does then:
// it routes only to generations that were built, that have not ended for good, and whose
// gates are passed; and it has three of them loaded at most.
type harness struct {
	t       *testing.T
	rng     *rand.Rand
	m       *machine
	fx      effects
	log     []string
	over    map[lifecycle.Generation]bool // ended for good: must never be routed again
	stable  map[lifecycle.Generation]bool
	entered map[lifecycle.Generation]policies.Micros // when the present share began
	top     lifecycle.Generation                     // highest generation accepted
}

func newHarness(t *testing.T, seed uint64) *harness {
	rng := rand.New(rand.NewPCG(seed, 0x510))
	kinds := lifecycle.Kinds()
	g := Gates{Faults: 1 + rng.IntN(3), CanaryFaults: 1 + rng.IntN(2)}
	if rng.IntN(3) == 0 {
		g.Ladder = []int{}
	}
	return &harness{t: t, rng: rng, m: testkit.Must(newMachine(kinds[rng.IntN(len(kinds))], g)),
		fx:   effects{loaded: map[lifecycle.Generation]bool{}},
		over: map[lifecycle.Generation]bool{}, stable: map[lifecycle.Generation]bool{}, entered: map[lifecycle.Generation]policies.Micros{}}
}

func (w *harness) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("%s\nthe last steps:\n%s", fmt.Sprintf(format, args...), strings.Join(w.log[max(0, len(w.log)-60):], "\n"))
}

// generation returns a random generation, mostly one that the machine knows.
func (w *harness) generation() lifecycle.Generation {
	s := w.m.slotStatus()
	if len(s.Modules) == 0 || w.rng.IntN(8) == 0 {
		return lifecycle.Generation(w.rng.IntN(int(w.top) + 3))
	}
	return s.Modules[w.rng.IntN(min(len(s.Modules), 4))].Generation
}

// offer returns a random valid offer.
func (w *harness) offer() offer {
	o := offer{Candidate: lifecycle.Candidate{Generation: max(1, w.generation()), Module: []byte{},
		Goal: lifecycle.Goal(1 + w.rng.IntN(4)), Stable: w.rng.IntN(4) == 0}}
	switch {
	case o.Stable:
		o.Goal = lifecycle.ToActive
	case w.m.kind.PerRequest():
		o.Permille = 1 + w.rng.IntN(400)
	default:
		o.Scope = string(rune('a' + w.rng.IntN(2)))
	}
	if w.rng.IntN(4) == 0 {
		o.statement.NotAfter = int64(w.m.now/policies.Second) + int64(w.rng.IntN(30))
	}
	if w.rng.IntN(2) == 0 {
		o.Generation = w.top + lifecycle.Generation(1+w.rng.IntN(2))
	}
	return o
}

func (w *harness) step() {
	m, g := w.m, w.generation()
	switch n := w.rng.IntN(20); {
	case n < 8 && m.building != lifecycle.Native:
		switch w.rng.IntN(10) {
		case 0:
			w.do("fails", m.building, func() { m.endBuild("bad luck") })
		case 1, 2, 3:
			w.do("is verified", m.building, func() { m.continueBuild(lifecycle.Compiling) })
		default:
			w.do("is built", m.building, func() { w.fx.built(m) })
		}
	case n < 12:
		f := lifecycle.Figures{Calls: uint64(w.rng.IntN(30_000))}
		if w.rng.IntN(10) == 0 {
			f.Worse, f.Compared = uint64(w.rng.IntN(1000)), uint64(w.rng.IntN(20_000))
		}
		w.do(fmt.Sprintf("has shown %+v", f), g, func() { m.observe(g, f, "") })
	case n < 13:
		w.do("fails a call", g, func() { m.fault(g, "it trapped") })
	case n == 13:
		w.do("is withdrawn", g, func() { w.fx.withdraw(m, g) })
	case n == 14:
		before := m.find(g)
		w.do("is rolled back", g, func() { m.rollBack(g, "by hand") })
		if w.over[g] = w.over[g] || before != nil; w.over[g] && m.find(g) != nil {
			w.fail("%d is still there", g)
		}
	case n < 17:
		o := w.offer()
		w.do(fmt.Sprintf("is offered: %+v", o), o.Generation, func() {
			_ = w.fx.offer(m, o)
			w.top = max(w.top, o.Generation)
			for _, o := range m.wanted {
				// It counts as stable if it ever was: its goal may have changed in between.
				w.stable[o.Generation] = w.stable[o.Generation] || o.Stable
			}
		})
	default:
		m.now += policies.Micros(w.rng.IntN(20)) * policies.Second
		w.do("and time passes", 0, func() {})
	}
}

// do makes one change and checks what follows.
func (w *harness) do(what string, g lifecycle.Generation, change func()) {
	w.log = append(w.log, fmt.Sprintf("%d %s, at %d s", g, what, w.m.now/policies.Second))
	before := w.fx.route
	change()
	w.m.advance()
	w.log = append(w.log, w.fx.follow(w.m)...)
	known := map[lifecycle.Generation]bool{}
	for _, s := range w.m.slotStatus().Modules {
		if known[s.Generation] {
			w.fail("%d is listed twice", s.Generation)
		}
		known[s.Generation] = true
	}
	if n := len(w.fx.loaded); n > 3 {
		w.fail("%d generations are loaded", n)
	}
	if w.fx.building != lifecycle.Native && !w.fx.cancelled && w.over[w.fx.building] {
		w.fail("%d is built, which is over", w.fx.building)
	}
	r := w.fx.route
	for _, g := range []lifecycle.Generation{r.active, r.candidate} {
		switch {
		case g == lifecycle.Native:
		case !w.fx.loaded[g]:
			w.fail("the route names %d, which is not loaded", g)
		case w.over[g]:
			w.fail("the route names %d, which is over", g)
		}
	}
	if r != before {
		w.judge(before, r)
	}
}

// judge checks a switch against the gates: a share grows by one step of the ladder, and
// only after the soak.
func (w *harness) judge(before, r route) {
	g := r.candidate
	if g == lifecycle.Native || w.stable[g] {
		return
	}
	first := 1000 // the largest share that needs no soak
	for i, p := range w.m.gates.Ladder {
		if i == 0 {
			first = p
		}
		if before.candidate == g && before.permille < p && p < r.permille {
			w.fail("from %d to %d ‰, past %d", before.permille, r.permille, p)
		}
	}
	if at, ok := w.entered[g]; ok && before.candidate == g && r.permille > max(first, before.permille) && w.m.now-at < w.m.gates.Canary.Soak {
		w.fail("%d went on after %d µs", g, w.m.now-at)
	}
	if r.candidate != before.candidate || r.permille != before.permille {
		w.entered[g] = w.m.now
	}
}

func TestRandomLives(t *testing.T) {
	seeds := uint64(testkit.Size(300, 3000))
	switches := 0
	for seed := range seeds {
		w := newHarness(t, seed)
		for range 600 {
			before := w.fx.route
			if w.step(); w.fx.route != before {
				switches++
			}
		}
		// At the end nothing is wanted, and nothing stays loaded.
		w.do("and nothing is wanted", 0, func() { _ = w.m.want(nil) })
		if w.m.building != lifecycle.Native {
			w.do("is built", w.m.building, func() { w.fx.built(w.m) })
		}
		if len(w.fx.loaded) > 0 || w.fx.route != (route{}) || w.fx.shadow != lifecycle.Native {
			w.fail("seed %d: %+v", seed, w.fx)
		}
	}
	if switches < int(seeds) {
		t.Errorf("only %d switches: the world is too hard to live in", switches)
	}
}

func TestShares(t *testing.T) {
	r := route{active: 4, candidate: 5}
	for _, permille := range []int{0, 1, 10, 100, 999} {
		r.permille = permille
		n := 0
		for i := range 100_000 {
			if r.triesRequest(hashRequest("request-" + strconv.Itoa(i))) {
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
		small.permille, large.permille = 10, 100
		if small.triesRequest(i) && !large.triesRequest(i) {
			t.Fatalf("request %d left the candidate", i)
		}
	}
	scoped := route{active: 4, candidate: 5, scope: "a"}
	if !scoped.triesScope("a") || scoped.triesScope("b") || scoped.triesScope("") || (route{active: 4, candidate: 5}).triesScope("") {
		t.Error("a scope's canary")
	}
	if scoped.triesRequest(7) {
		t.Error("a scope's canary answers requests")
	}
}

func TestBadGates(t *testing.T) {
	for _, g := range []Gates{
		{Ladder: []int{0}}, {Ladder: []int{5, 5}}, {Ladder: []int{1000}}, {Faults: -1}, {Faults: maxFaults + 1}, {CanaryFaults: -1}, {Window: -1},
	} {
		if _, err := newMachine(lifecycle.BidSelect, g); err == nil {
			t.Errorf("%+v is accepted", g)
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
