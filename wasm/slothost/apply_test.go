package slothost

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// idle returns Slots that do not run: what is wanted stays in its first phase.
func idle(t testing.TB, c Config) (*Slots, *slot) {
	t.Helper()
	s := testkit.Must(New(c))
	return s, s.slots[abi.Select]
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

// TestCompared checks how many answers a step of a canary must have compared: what its gate
// says, or half of those that are recorded.
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
	for gate, want := range map[uint64]uint64{0: 10, 7: 7} {
		c := config(t)
		c.Gates[abi.Select].Canary.Compared = gate
		if _, k := idle(t, c); k.machine.gates.Canary.Compared != want {
			t.Errorf("a gate of %d: %d, want %d", gate, k.machine.gates.Canary.Compared, want)
		}
	}
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

// TestRolledBackIsKept checks that what a spec rolls back is written, though it was never
// offered, that the number is limited, and that an unchanged history is not written again.
func TestRolledBackIsKept(t *testing.T) {
	c := config(t)
	c.File = filepath.Join(t.TempDir(), "slots.json")
	s, k := idle(t, c)
	most := make([]lifecycle.Generation, lifecycle.MaxRolledBack)
	for i := range most {
		most[i] = lifecycle.Generation(i + 1)
	}
	if err := s.Check(without(want(), append(most, 1000)...)); err == nil || len(k.history.RolledBack) > 0 {
		t.Errorf("%v: more than the limit are rolled back", err)
	}
	for range 2 {
		apply(t, s, without(want(), most...))
	}
	if got := testkit.Must(readHistory(c.File))["bid-select"].RolledBack; len(got) != lifecycle.MaxRolledBack {
		t.Errorf("%d are written as rolled back", len(got))
	}
	testkit.NoError(t, os.Remove(c.File))
	s.record()
	if _, err := os.Stat(c.File); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("written again: %v", err)
	}
}

// TestHangingDisk checks that only the spec itself waits until File is written: Status,
// rollbacks, Check and Apply do not.
func TestHangingDisk(t *testing.T) {
	s, _ := running(t, config(t))
	apply(t, s, want(stable(t, 5, other(1))))
	waitFor(t, "it is active", func() bool { return s.Status()[0].Active == 5 })
	s.writing.Lock() // the disk hangs
	next := without(want(stable(t, 6, other(2))), 5)
	testkit.NoError(t, s.Check(next))
	testkit.NoError(t, s.Apply(next))
	if st := s.Status()[0]; st.Active != lifecycle.Native || phase(s, 5) != "rolledBack" || phase(s, 6) != "" {
		t.Errorf("%+v", st)
	}
	// What is rolled back before it was in force never runs, though that spec is refused.
	testkit.NoError(t, s.Apply(without(want(stable(t, 6, other(2)), candidate(t, 7, lifecycle.ToWarm, other(3))), 5)))
	testkit.WantError(t, s.Check(without(want(stable(t, 1, other(1))), 7)), "older")
	s.writing.Unlock()
	waitFor(t, "the next one is active", func() bool { return s.Status()[0].Active == 6 })
	if got := phase(s, 7); got != "" {
		t.Errorf("7 is %s", got)
	}
}

// TestOldSpecDuringWrite has an older spec come while a newer one is put in force: it is refused, or the newer one never
// was in force.
func TestOldSpecDuringWrite(t *testing.T) {
	newer, older := want(stable(t, 10, other(1))), want(stable(t, 7, other(2)))
	for range 2000 {
		s, k := idle(t, config(t))
		testkit.NoError(t, s.Apply(newer))
		written := make(chan struct{})
		go func() { defer close(written); s.record() }()
		err := s.Apply(older)
		<-written
		s.record()
		if k.history.Mark.Generation < 10 && phase(s, 10) != "" {
			t.Fatalf("after generation 10 was in force (%s), the newest admitted is %d; the older spec: %v",
				phase(s, 10), k.history.Mark.Generation, err)
		}
	}
}

// TestEndOnHangingDisk checks that the end of Run does not wait for a disk that hangs.
func TestEndOnHangingDisk(t *testing.T) {
	s := testkit.Must(New(config(t)))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	apply(t, s, want(stable(t, 5, other(1))))
	waitFor(t, "it is active", func() bool { return s.Status()[0].Active == 5 })
	s.writing.Lock()
	defer s.writing.Unlock()
	cancel()
	select {
	case err := <-ended:
		testkit.WantError(t, err, "could not be written within")
	case <-time.After(testkit.WaitTimeout()):
		t.Fatal("Run has not ended")
	}
}

// TestWaitingModulesKeepTheirBytes checks that a spec without the bytes of modules that wait
// for the build of another one does not drop them.
func TestWaitingModulesKeepTheirBytes(t *testing.T) {
	s, _ := idle(t, config(t))
	apply(t, s, want(candidate(t, 5, lifecycle.ToShadow, other(1))))
	ten, twenty := stable(t, 10, other(2)), candidate(t, 20, lifecycle.ToShadow, other(3))
	apply(t, s, want(ten, twenty))
	apply(t, s, want(bare(ten), bare(twenty)))
	if a, b := phase(s, 10), phase(s, 20); a != "waiting" || b != "waiting" {
		t.Errorf("10 is %s, 20 is %s", a, b)
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
