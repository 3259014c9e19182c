package slothost

import (
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// guardWant returns a spec with a stable guard that has this body.
func guardWant(t testing.TB, generation lifecycle.Generation, body ...[]byte) lifecycle.SlotSpec {
	code := hosttest.Policy(hosttest.Function("cs_guard_v1", nil, body...)).Encode()
	return specOf(abi.Guard, stableOf(signedFor(t, generation, lifecycle.ToActive, code, abi.Guard)))
}

// TestGuardsFailClosed checks that plans are denied while a stable guard is not fetched
// yet, is being built, or was rejected, and that the native guard decides when the spec
// has no guard any more.
func TestGuardsFailClosed(t *testing.T) {
	c := config(t)
	c.Kinds = []abi.Kind{abi.Guard}
	s, _ := running(t, c)
	change := abi.Change{Next: policies.OneStagePlan("m", []policies.ReplicaID{"a", "b"})}
	denied := func() bool {
		_, denied := s.Guard("m").Guard(change)
		return denied
	}
	if denied() {
		t.Fatal("the native guard denies")
	}
	w := guardWant(t, 3, hosttest.Result(5, 0))
	code := w.Candidates[0].Module
	w.Candidates[0].Module = nil // still to be fetched
	apply(t, s, w)
	if !denied() {
		t.Error("a plan comes through before the guard is there")
	}
	w.Candidates[0].Module = code
	apply(t, s, w)
	waitFor(t, "it is rejected", func() bool {
		if !denied() {
			t.Fatalf("a plan comes through: %+v", s.Status()[0])
		}
		return statusOf(s, abi.Guard, 3).Phase == lifecycle.Rejected
	})
	if st := s.Status()[0]; st.Active != 0 || !denied() {
		t.Errorf("a plan comes through without the guard: %+v", st)
	}
	apply(t, s, without(specOf(abi.Guard), 3))
	if denied() {
		t.Error("the native guard does not decide")
	}
}

// TestModulesSeeTheTime checks that frames have the time of day, so that rules about hours
// and dates have the same effect in a module as in a control plane's own evaluator.
func TestModulesSeeTheTime(t *testing.T) {
	c := config(t)
	at := time.Unix(1_763_721_600, 0)
	c.Now = func() time.Time { return at }
	s := testkit.Must(New(c))
	at = at.Add(5 * time.Second)
	ask(t, s, 1)
	records := s.Records(abi.Select)
	if len(records) != 1 {
		t.Fatalf("%d records", len(records))
	}
	call, status := abi.DecodeContext(records[0].Frame)
	if status != abi.OK || call.Now != policies.Micros(at.UnixMicro()) {
		t.Errorf("the frame has %d, %v; it is %d", call.Now, status, at.UnixMicro())
	}
}
