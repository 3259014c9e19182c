package slothost

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var natives = func(n hosttest.Native) Native {
	return Native{Partitioner: n, Refiner: n, Quoter: n, Selector: n, Detector: n, Placer: n, Guard: n}
}(hosttest.Native{})

// signed returns the signature file of a statement.
func signed(t testing.TB, s sign.Statement, keys ...byte) []byte {
	t.Helper()
	return hosttest.Signed(t, s, nil, keys...)
}

// signedFor returns a candidate that is signed for the kinds.
func signedFor(t testing.TB, generation lifecycle.Generation, goal lifecycle.Goal, module []byte, kinds ...abi.Kind) lifecycle.Candidate {
	return lifecycle.Candidate{Generation: generation, Goal: goal, Signature: signed(t, hosttest.Statement(generation, module, kinds...), 0), Module: module}
}

// candidate returns a signed module for bid-select.
func candidate(t testing.TB, generation lifecycle.Generation, goal lifecycle.Goal, module []byte) lifecycle.Candidate {
	c := signedFor(t, generation, goal, module, abi.Select)
	c.Permille = 500
	return c
}

func stable(t testing.TB, generation lifecycle.Generation, module []byte) lifecycle.Candidate {
	return stableOf(candidate(t, generation, lifecycle.ToActive, module))
}

func stableOf(c lifecycle.Candidate) lifecycle.Candidate {
	c.Stable, c.Permille, c.Scope = true, 0, ""
	return c
}

// want returns the spec of a slot for bid-select, specOf that of any slot.
func want(all ...lifecycle.Candidate) lifecycle.SlotSpec { return specOf(abi.Select, all...) }

func specOf(k abi.Kind, all ...lifecycle.Candidate) lifecycle.SlotSpec {
	return lifecycle.SlotSpec{Kind: slotKind(k), Candidates: all}
}

// without returns a spec that rolls generations back.
func without(spec lifecycle.SlotSpec, generations ...lifecycle.Generation) lifecycle.SlotSpec {
	for _, g := range generations {
		spec.RolledBack = append(spec.RolledBack, lifecycle.RolledBackModule{Generation: g, Reason: "by hand"})
	}
	return spec
}

// apply applies a spec that must be accepted, and puts it in force as Run does.
func apply(t testing.TB, s *Slots, spec lifecycle.SlotSpec) {
	t.Helper()
	testkit.NoError(t, s.Apply(spec))
	s.record()
}

// quick returns promotion gates that pass after a few calls.
func quick(calls uint64) Gates {
	gate := Gate{Calls: calls, Soak: -1}
	return Gates{Ladder: []int{100}, Shadow: gate, Canary: gate}
}

// config returns the configuration of Slots with bid-select alone.
func config(t testing.TB) Config {
	c := Config{Kinds: []abi.Kind{abi.Select}, Native: natives, Ring: hosttest.Ring, Every: 1, Tick: time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
	c.Gates[abi.Select] = quick(20)
	for k := range c.Limits { // the host may be busy
		c.Limits[k].Wall = time.Hour
	}
	return c
}

// running starts Slots. stop ends them; the cleanup of the test does so otherwise.
func running(t testing.TB, c Config) (slots *Slots, stop func()) {
	t.Helper()
	s := testkit.Must(New(c))
	return s, testkit.Run(t, s.Run)
}

// waitFor waits for a condition that the calls which it makes bring about.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(testkit.WaitTimeout()); !ok(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatal("timed out waiting for " + what)
		}
	}
}

// phase returns the phase of a generation in bid-select.
func phase(s *Slots, generation lifecycle.Generation) string {
	return statusOf(s, abi.Select, generation).Phase.String()
}

func statusOf(s *Slots, k abi.Kind, generation lifecycle.Generation) lifecycle.Status {
	for _, st := range s.Status() {
		if st.Kind != slotKind(k) {
			continue
		}
		for _, l := range st.Modules {
			if l.Generation == generation {
				return l
			}
		}
	}
	return lifecycle.Status{}
}

// ask makes call number n and checks the answer.
func ask(t testing.TB, s *Slots, n int) {
	b := bids(1+n%9, uint64(n))
	if got, want := s.Selector().Select(b), natives.Selector.Select(b); got != want {
		t.Errorf("call %d: %d, want %d", n, got, want)
	}
}

func bids(n int, seed uint64) []policies.Bid {
	r := rand.New(rand.NewPCG(seed, 1))
	list := make([]policies.Bid, n)
	for i := range list {
		list[i] = policies.Bid{From: policies.ReplicaID(fmt.Sprint("replica-", i)), Load: policies.Tokens(r.IntN(50)), Start: policies.Micros(r.IntN(3))}
	}
	return list
}

// trapsAt returns a module that traps at the call with the given number, and not in any
// vector or later recorded call.
func trapsAt(call int64) []byte { return trapsWhere(1<<48-1, call) }

// trapsWhere returns a module that traps at calls whose number has the given bits in a mask.
func trapsWhere(mask, bits int64) []byte {
	return hosttest.LeastLoadModule(hosttest.I32(0), hosttest.Load64(hosttest.Arena+64), hosttest.I64(mask), hosttest.Op(0x83),
		hosttest.I64(bits), hosttest.Op(0x51), hosttest.If(hosttest.Unreachable))
}

// other returns a module with the same decisions and another digest.
func other(n int32) []byte { return hosttest.LeastLoadModule(hosttest.I32(n), hosttest.Drop) }

// TestWayUpAndBack takes two modules through all phases of good ones, and checks that each
// call is answered correctly.
func TestWayUpAndBack(t *testing.T) {
	s, _ := running(t, config(t))
	calls := 0
	reach := func(generation lifecycle.Generation, to string) {
		t.Helper()
		waitFor(t, fmt.Sprintf("generation %d is %s", generation, to), func() bool {
			ask(t, s, calls)
			calls++
			return phase(s, generation) == to
		})
	}
	apply := func(w lifecycle.SlotSpec) {
		t.Helper()
		testkit.NoError(t, s.Check(w))
		for range 2 {
			apply(t, s, w)
		}
	}
	first, second := candidate(t, 10, lifecycle.ToShadow, other(1)), candidate(t, 20, lifecycle.ToActive, other(2))
	bytes := first.Module
	first.Module = nil
	apply(want(first))
	if got := phase(s, 10); got != "fetching" {
		t.Fatalf("without its bytes it is %s", got)
	}
	first.Module = bytes
	apply(want(first))
	reach(10, "shadow")
	first.Module = nil
	if apply(want(first)); phase(s, 10) != "shadow" {
		t.Error("missing though loaded")
	}
	waitFor(t, "its shadow has seen 20 native calls", func() bool { ask(t, s, calls); calls++; return statusOf(s, abi.Select, 10).Figures.Calls >= 20 })
	if got := statusOf(s, abi.Select, 10); got.Name != "test" || got.Version != "1.2.3" || got.SHA256 != lifecycle.Sum(bytes) || got.Figures.Differ+got.Figures.Worse+got.Figures.Faults > 0 || got.Calls != 0 {
		t.Errorf("%+v", got)
	}
	first.Goal = lifecycle.ToCanary
	apply(want(first))
	reach(10, "canary")
	waitFor(t, "its canary has 500 ‰, and 100 answers are compared", func() bool {
		ask(t, s, calls)
		calls++
		l := statusOf(s, abi.Select, 10)
		return l.Permille == 500 && l.Figures.Compared >= 100
	})
	if l := statusOf(s, abi.Select, 10); l.Phase != lifecycle.Canary || l.Figures.Differ+l.Figures.Worse > 0 {
		t.Errorf("%+v", l)
	}
	first.Goal = lifecycle.ToActive
	apply(want(first))
	reach(10, "active")
	ask(t, s, 0)
	if l := statusOf(s, abi.Select, 10); l.Calls == 0 || l.Faults != 0 || l.Fuel.Max == 0 {
		t.Errorf("%+v", l)
	}
	if r := s.Records(abi.Select); len(r) == 0 || r[0].Module != lifecycle.Sum(bytes) {
		t.Errorf("records: %d", len(r))
	}
	// The first one is stable; offer the next one.
	first = stableOf(first)
	apply(want(first, second))
	reach(20, "active")
	if got := phase(s, 10); got != "previous" {
		t.Errorf("10 is %s", got)
	}
	// An operator rolls it back.
	apply(without(want(first), 20))
	if l := statusOf(s, abi.Select, 20); l.Phase != lifecycle.RolledBack || l.Reason != "by hand" || phase(s, 10) != "active" {
		t.Errorf("%+v", s.Status())
	}
	testkit.WantError(t, s.Check(want(first, second)), "rolled back")
	if l := statusOf(s, abi.Select, 20); l.Calls == 0 {
		t.Errorf("what it counted is gone: %+v", l)
	}
	// The spec is empty: the native policy decides at once.
	apply(want())
	if st := s.Status()[0]; st.Active != 0 {
		t.Errorf("%+v", st)
	}
	ask(t, s, 1)
	if r := s.Records(abi.Select); r[len(r)-1].Module != [32]byte{} {
		t.Error("the native policy's calls are not recorded")
	}
}

// TestFaultInCanary checks that the module is rejected at its first fault, that no
// caller notices, and that the module is not tried again.
func TestFaultInCanary(t *testing.T) {
	c := config(t)
	c.Gates[abi.Select].Canary.Calls = 1 << 40
	s, _ := running(t, c)
	calls := 0
	for ; calls < 300; calls++ { // so that all records of early calls are overwritten
		ask(t, s, calls)
	}
	apply(t, s, want(candidate(t, 5, lifecycle.ToActive, trapsAt(6))))
	waitFor(t, "it is rejected", func() bool { ask(t, s, calls); calls++; return phase(s, 5) == "rejected" })
	if l := statusOf(s, abi.Select, 5); !strings.Contains(l.Reason, "1 fault at 100 ‰: bid-select: trapped: ") {
		t.Errorf("%+v", l)
	}
	w := want(candidate(t, 5, lifecycle.ToActive, trapsAt(6)))
	if apply(t, s, w); phase(s, 5) != "rejected" {
		t.Errorf("offered again it is %s", phase(s, 5))
	}
	waitFor(t, "it is freed", func() bool { return statusOf(s, abi.Select, 5).Faults == 1 })
}

// TestRestart checks that the active module comes back at once after a restart, even if it
// is below the floor, and that older ones do not.
func TestRestart(t *testing.T) {
	c := config(t)
	c.File = filepath.Join(t.TempDir(), "slots.json")
	old, previous, newest := stable(t, 5, other(1)), stable(t, 10, other(2)), stable(t, 20, other(3))
	s, stop := running(t, c)
	for _, w := range []lifecycle.Candidate{old, previous, newest} {
		apply(t, s, want(w))
		waitFor(t, "active", func() bool { return phase(s, w.Generation) == "active" })
	}
	stop()

	s, stop = running(t, c)
	testkit.WantError(t, s.Check(want(old)), "older")
	same := previous
	same.Signature = signed(t, hosttest.Statement(10, previous.Module, abi.Quote, abi.Select), 0)
	if err := s.Check(want(same)); err == nil {
		t.Error("another statement with the number of one that ran is admitted")
	}
	apply(t, s, want(newest))
	waitFor(t, "the newest is active", func() bool { return phase(s, 20) == "active" })
	stop()

	// The operator rolls it back while the host is down.
	s, stop = running(t, c)
	w := without(want(previous), 20)
	apply(t, s, w)
	waitFor(t, "the one before is active", func() bool { return phase(s, 10) == "active" })
	stop()

	s, _ = running(t, c)
	testkit.WantError(t, s.Check(want(newest)), "rolled back")
	apply(t, s, w)
	waitFor(t, "the one before is active again", func() bool { return phase(s, 10) == "active" })
}

// TestRestartWhileTrying checks that after a crash during a trial, both the active module
// and the candidate come back.
func TestRestartWhileTrying(t *testing.T) {
	c := config(t)
	c.File = filepath.Join(t.TempDir(), "slots.json")
	w := want(stable(t, 10, other(2)), candidate(t, 20, lifecycle.ToShadow, other(3)))
	for range 3 {
		s, stop := running(t, c)
		apply(t, s, w)
		waitFor(t, "one active, one in shadow", func() bool { return phase(s, 10) == "active" && phase(s, 20) == "shadow" })
		stop()
	}
}

// TestBackToWhatNeverRan covers a host that was started when the second generation was
// stable already. It goes back to the first if it received that one's signature as
// Previous; without it, it still rolls the second back.
func TestBackToWhatNeverRan(t *testing.T) {
	first, second := stable(t, 10, other(1)), stable(t, 20, other(2))
	back := without(want(first), 20)
	for _, known := range []bool{true, false} {
		s, _ := running(t, config(t))
		w := want(second)
		if known {
			w.Previous = first.Signature
		}
		apply(t, s, w)
		waitFor(t, "the second is active", func() bool { return phase(s, 20) == "active" })
		if err := s.Check(want(first)); (err == nil) != known {
			t.Errorf("previous known: %v: %v", known, err)
		}
		if !known {
			testkit.WantError(t, s.Check(back), "older")
			if st := s.Status()[0]; st.Active != 0 || phase(s, 20) != "rolledBack" {
				t.Errorf("%+v", st)
			}
			testkit.WantError(t, s.Check(want(second)), "rolled back")
			continue
		}
		apply(t, s, back)
		waitFor(t, "the first is active", func() bool { return phase(s, 10) == "active" })
	}
}

// TestBackPastATrial covers a third generation that displaced the first in memory and was
// rolled back. When the second is rolled back too, the first comes back.
func TestBackPastATrial(t *testing.T) {
	s, _ := running(t, config(t))
	first, second, third := stable(t, 10, other(1)), stable(t, 20, other(2)), candidate(t, 30, lifecycle.ToActive, other(3))
	beforeSecond := func(spec lifecycle.SlotSpec) lifecycle.SlotSpec {
		spec.Previous = first.Signature
		return spec
	}
	n := 0
	for _, step := range []struct {
		w      lifecycle.SlotSpec
		active lifecycle.Generation
	}{
		{want(first), 10}, {want(second), 20}, {beforeSecond(want(second, third)), 30},
		{beforeSecond(without(want(second), 30)), 20}, {without(want(first), 20, 30), 10},
	} {
		apply(t, s, step.w)
		waitFor(t, fmt.Sprintf("%d is active", step.active), func() bool {
			ask(t, s, n)
			n++
			return s.Status()[0].Active == step.active
		})
	}
	// An older generation that no spec named as Previous cannot come back.
	testkit.WantError(t, s.Check(want(stable(t, 5, other(1)))), "older")
}
