package slothost

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// idle returns Slots that do not run: what is offered stays in its first phase.
func idle(t testing.TB, c Config) (*Slots, *slot) {
	t.Helper()
	s := testkit.Must(New(c))
	return s, s.slots[abi.Select]
}

// rollBack ends what a spec lists as rolled back, as Check of a refused one does.
func rollBack(s *Slots, w lifecycle.SlotSpec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rollBack(w)
}

// checkOnly returns what Check does, and changes nothing.
func checkOnly(s *Slots, w lifecycle.SlotSpec) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _, err := s.check(w)
	return err
}

// lacks returns how many modules are to be fetched for bid-select.
func lacks(s *Slots) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.slots[abi.Select].missing())
}

// TestReached checks which phase a generation is known to have reached.
func TestReached(t *testing.T) {
	for _, c := range []struct {
		m    lifecycle.Status
		want lifecycle.Phase
	}{
		{lifecycle.Status{Phase: lifecycle.Warming}, 0},
		{lifecycle.Status{Phase: lifecycle.Warm}, lifecycle.Warm},
		{lifecycle.Status{Phase: lifecycle.Shadow}, lifecycle.Shadow},
		{lifecycle.Status{Phase: lifecycle.Active}, lifecycle.Active},
		{lifecycle.Status{Phase: lifecycle.Previous}, lifecycle.Active},
		{lifecycle.Status{Phase: lifecycle.Rejected}, 0},
		{lifecycle.Status{Phase: lifecycle.Rejected, Calls: 1}, lifecycle.Shadow},
		{lifecycle.Status{Phase: lifecycle.Withdrawn, Figures: lifecycle.Figures{Calls: 1}}, lifecycle.Shadow},
	} {
		if got := reached(c.m); got != c.want {
			t.Errorf("%+v: %s, want %s", c.m, got, c.want)
		}
	}
}

// TestExpiryText checks from when on a statement's end is reported.
func TestExpiryText(t *testing.T) {
	st := sign.Statement{NotAfter: 1_800_000_000}
	end := time.Unix(st.NotAfter, 0)
	for _, c := range []struct {
		now  time.Time
		want string
	}{{end.Add(-warnBefore - 1), ""}, {end.Add(-warnBefore), "expires at"}, {end, "expires at"}, {end.Add(time.Second), "expired at"}} {
		if got := expiry(st, c.now); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%v before its end: %q, want %q", end.Sub(c.now), got, c.want)
		}
	}
	if got := expiry(sign.Statement{}, end); got != "" {
		t.Errorf("a statement without an end: %q", got)
	}
}

// TestCompared checks how many answers a step of a canary must have compared: half of those
// that are recorded.
func TestCompared(t *testing.T) {
	for _, c := range []struct {
		kind  abi.Kind
		calls uint64
		every int
		want  uint64
	}{
		{abi.Select, 100, 1, 50}, {abi.Select, 100, 5, 10}, {abi.Select, 1, 5, 1}, {abi.Select, 100, 0, 0},
		{abi.Select, 0, 1, DefaultCanaryCalls / 2}, {abi.Partition, 0, 1, 1}, {abi.Partition, 8, 1, 4},
	} {
		if got := compared(c.kind, c.calls, c.every); got != c.want {
			t.Errorf("%v, %d calls, one of %d recorded: %d, want %d", c.kind, c.calls, c.every, got, c.want)
		}
	}
}

// TestKindsAreChecked checks which kinds a host may have slots for, and that their order
// does not matter.
func TestKindsAreChecked(t *testing.T) {
	c := config(t)
	c.Kinds, c.Every = []abi.Kind{abi.Place, abi.Select}, 0
	got := testkit.Must(c.complete())
	if !slices.IsSorted(got.Kinds) || len(got.Kinds) != 2 || got.Every != DefaultEvery || c.Kinds[0] != abi.Place {
		t.Errorf("%+v", got)
	}
	for _, kinds := range [][]abi.Kind{nil, {abi.Configure}, {abi.NumKinds}, {abi.Select, abi.Place, abi.Select}} {
		c.Kinds = kinds
		if _, err := c.complete(); err == nil {
			t.Errorf("%v is accepted", kinds)
		}
	}
	c.Kinds, c.Native = []abi.Kind{abi.Select}, Native{}
	if _, err := c.complete(); err == nil {
		t.Error("a slot without a native policy is accepted")
	}
}

// TestUnknownKinds checks that orders about kinds without a slot do nothing.
func TestUnknownKinds(t *testing.T) {
	s, _ := idle(t, config(t))
	if s.Records(abi.NumKinds) != nil || s.Records(abi.Place) != nil {
		t.Error("records of kinds without a slot")
	}
	rollBack(s, without(specOf(abi.Place), 5))
	testkit.WantError(t, s.Check(specOf(abi.Place)), "no such slot")
}

// TestWithdrawnBeforeItWasBuilt checks that a module which the spec does not have any more
// is withdrawn, and that an older one which waits is not superseded by a newer one of the
// same spec.
func TestWithdrawnBeforeItWasBuilt(t *testing.T) {
	s, k := idle(t, config(t))
	apply(t, s, want(candidate(t, 5, lifecycle.ToShadow, other(1))))
	if got := phase(s, 5); got != "verifying" || k.spec.Candidates[0].Module != nil {
		t.Errorf("5 is %s, its bytes are kept: %v", got, k.spec.Candidates[0].Module != nil)
	}
	apply(t, s, want(candidate(t, 5, lifecycle.ToShadow, other(1))))
	if k.spec.Candidates[0].Module != nil {
		t.Error("the bytes of a module that is being built are kept")
	}
	apply(t, s, want(stable(t, 10, other(2)), candidate(t, 20, lifecycle.ToShadow, other(3))))
	if five, ten, twenty := phase(s, 5), phase(s, 10), statusOf(s, abi.Select, 20); five != "withdrawn" || ten != "waiting" || twenty.Phase != 0 {
		t.Errorf("5 is %s, 10 is %s, 20 is %s", five, ten, twenty.Phase)
	}
	if k.spec.Candidates[1].Module == nil {
		t.Error("the bytes of a module that waits to be offered are gone")
	}
}

// TestSizeOfModules checks the limit of a module's bytes.
func TestSizeOfModules(t *testing.T) {
	s, _ := idle(t, config(t))
	apply(t, s, want(candidate(t, 5, lifecycle.ToShadow, make([]byte, maxModule))))
	testkit.WantError(t, s.Apply(want(candidate(t, 6, lifecycle.ToShadow, make([]byte, maxModule+1)))), "at most")
	bad := candidate(t, 7, lifecycle.ToShadow, other(1))
	bad.Module = other(2)
	testkit.WantError(t, s.Apply(want(bad)), "do not have the digest")
}

// TestPreviousIsChecked checks that only a previous module with a good statement may come
// back, and that it must be older than the candidate and not rolled back.
func TestPreviousIsChecked(t *testing.T) {
	good := stable(t, 10, other(1))
	forged := signed(t, hosttest.Statement(10, other(1), abi.Select), 200)
	for name, c := range map[string]struct {
		previous []byte
		back     []lifecycle.Generation
		wanted   int
	}{
		"good":              {good.Signature, nil, 2},
		"by an unknown key": {forged, nil, 1},
		"none":              {nil, nil, 1},
		"the candidate":     {stable(t, 20, other(2)).Signature, nil, 1},
		"rolled back":       {good.Signature, []lifecycle.Generation{10}, 1},
	} {
		s, k := idle(t, config(t))
		spec := without(want(stable(t, 20, other(2))), c.back...)
		spec.Previous = c.previous
		apply(t, s, spec)
		if got := len(k.history.Wanted); got != c.wanted {
			t.Errorf("%s: %d may run, want %d", name, got, c.wanted)
		}
	}
}

// TestUnwantedIsRolledBack checks that an active module which the spec does not have is
// rolled back at once, unless a newer module is stable.
func TestUnwantedIsRolledBack(t *testing.T) {
	for name, c := range map[string]struct {
		next   lifecycle.Candidate
		active lifecycle.Generation
	}{
		"a newer stable one":   {stable(t, 20, other(2)), 10},
		"a newer one on trial": {candidate(t, 20, lifecycle.ToShadow, other(2)), lifecycle.Native},
	} {
		config := config(t)
		s, stop := running(t, config)
		apply(t, s, want(stable(t, 10, other(1))))
		waitFor(t, "10 is active", func() bool { return s.Status()[0].Active == 10 })
		k := s.slots[abi.Select]
		s.mu.Lock()
		before := k.spec
		k.spec = want(c.next)
		k.rollBackUnwanted()
		k.spec = before
		s.mu.Unlock()
		stop()
		if got := s.Status()[0].Active; got != c.active {
			t.Errorf("%s: %d is active, want %d", name, got, c.active)
		}
	}
}

// TestRolledBackIsKept checks that what is rolled back is written, though nothing was ever
// offered, that the number is limited, and that a failed write is logged.
func TestRolledBackIsKept(t *testing.T) {
	log := new(testkit.Log)
	c := config(t)
	c.File, c.Logger = filepath.Join(t.TempDir(), "slots.json"), log.Logger()
	s, k := idle(t, c)
	most := make([]lifecycle.Generation, lifecycle.MaxRolledBack)
	for i := range most {
		most[i] = lifecycle.Generation(i + 1)
	}
	rollBack(s, without(want(), append(most, 1000)...))
	if len(k.history.RolledBack) > 0 {
		t.Error("more than the limit are rolled back")
	}
	rollBack(s, without(want(), most...))
	if got := testkit.Must(readHistory(c.File))["bid-select"].RolledBack; len(got) != lifecycle.MaxRolledBack {
		t.Errorf("%d are written as rolled back", len(got))
	}
	if log.Count("failed") > 0 {
		t.Errorf("a write that succeeded is logged as a failure:\n%s", log)
	}
	// An unchanged history is not written again.
	testkit.NoError(t, os.Remove(c.File))
	rollBack(s, without(want(), most...))
	if _, err := os.Stat(c.File); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("written again: %v", err)
	}
	c.File = filepath.Join(t.TempDir(), "none", "none", "slots.json")
	s, _ = idle(t, c)
	if rollBack(s, without(want(), 5)); log.Count("saving the rolled back policy modules failed") != 1 {
		t.Errorf("a failed write is not logged:\n%s", log)
	}
	s.reconcile()
	if log.Count("saving the policy modules that ran failed") != 1 || log.Count("policy module refused") != 0 {
		t.Errorf("logged:\n%s", log)
	}
}

// TestNothingIsAdmittedUnwritten checks that a spec which could not be written changes
// nothing: older modules may still run.
func TestNothingIsAdmittedUnwritten(t *testing.T) {
	c := config(t)
	c.File = filepath.Join(t.TempDir(), "none", "none", "slots.json")
	s, k := idle(t, c)
	if err := s.Apply(want(stable(t, 20, other(2)))); !errors.Is(err, ErrNotWritten) {
		t.Fatal(err)
	}
	testkit.NoError(t, s.Check(want(stable(t, 10, other(1)))))
	if k.history.Mark.Generation != 0 || len(k.history.Wanted) > 0 {
		t.Errorf("%+v", k.history)
	}
}

// TestForgetsOldGenerations checks that a host keeps little of the generations that it was
// offered, and all of those that its spec has.
func TestForgetsOldGenerations(t *testing.T) {
	s, k := idle(t, config(t))
	for g := lifecycle.Generation(1); g <= 3*maxAbout; g++ {
		c := candidate(t, g, lifecycle.ToShadow, other(int32(g)))
		c.Module = nil // it is not fetched
		apply(t, s, want(c))
		if k.about[g] == nil || len(k.about) > maxAbout+1 {
			t.Fatalf("generation %d: %d are kept, itself %v", g, len(k.about), k.about[g] != nil)
		}
	}
}

// TestHistoryIsCopied checks that a history that is worked out does not change the one in
// force.
func TestHistoryIsCopied(t *testing.T) {
	h := history{RolledBack: []lifecycle.Generation{3, 9}}
	h.RolledBack = h.RolledBack[:1:2]
	next := h.clone()
	next.recordRollback(5)
	if all := h.RolledBack[:2]; all[1] != 9 {
		t.Errorf("it has %v", all)
	}
}

// TestWaitingCandidateIsOffered checks that a candidate which had to wait for the build of
// an older one is offered when that one is done, without another spec.
func TestWaitingCandidateIsOffered(t *testing.T) {
	s, _ := idle(t, config(t))
	apply(t, s, want(candidate(t, 5, lifecycle.ToShadow, other(1))))
	apply(t, s, want(stable(t, 10, other(2)), candidate(t, 20, lifecycle.ToShadow, other(3))))
	testkit.Run(t, s.Run)
	waitFor(t, "10 is active and 20 in shadow", func() bool { return phase(s, 10) == "active" && phase(s, 20) == "shadow" })
}

// TestRefusedOfferIsReturned checks that a module which was withdrawn after it had answered
// calls is refused when a spec has it again, once.
func TestRefusedOfferIsReturned(t *testing.T) {
	log := new(testkit.Log)
	c := config(t)
	c.Gates[abi.Select].Canary.Calls, c.Logger = 1<<40, log.Logger()
	s, _ := running(t, c)
	spec := want(candidate(t, 5, lifecycle.ToActive, other(1)))
	apply(t, s, spec)
	calls := 0
	waitFor(t, "5 is in canary", func() bool { ask(t, s, calls); calls++; return phase(s, 5) == "canary" })
	apply(t, s, want())
	if got := phase(s, 5); got != "withdrawn" {
		t.Fatal(got)
	}
	testkit.WantError(t, s.Apply(spec), "sign the module anew")
	s.reconcile()
	if log.Count("policy module refused") > 0 {
		t.Errorf("it is offered again:\n%s", log)
	}
}
