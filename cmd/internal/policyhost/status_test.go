package policyhost

import (
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/slot"
	"github.com/cascadeinfer/cascade/wasm/slots"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/policy"
)

// TestFiguresReachTheReport: what a host counts of a generation is in its report, as
// the control plane reads it.
func TestFiguresReachTheReport(t *testing.T) {
	s := told(slots.Status{Kind: "place", Lives: []slots.Life{{
		Generation: 7, State: "canary", Calls: 50, Faults: 1, Starved: 2, Figures: slots.Figures{Compared: 31, Differ: 13, Worse: 12},
	}}})
	read, dropped := policy.ReadStatuses([]*api.SlotStatus{s})
	if dropped != 0 || len(read) != 1 || len(read[0].Lives) != 1 {
		t.Fatalf("%+v, %d dropped", read, dropped)
	}
	l := read[0].Lives[0]
	if got, want := [6]uint64{l.Calls, l.Faults, l.Starved, l.Compared, l.Differ, l.Worse}, [6]uint64{50, 1, 2, 31, 13, 12}; got != want {
		t.Errorf("%d, want %d", got, want)
	}
}

// TestEvidenceReachesTheFleet: what a slot has against a module, sure or not, keeps the
// fleet from promoting it and from having it proven.
func TestEvidenceReachesTheFleet(t *testing.T) {
	const generation = 7
	now := time.Unix(1e9, 0)
	inShadow, inScope := slot.Offer{Generation: generation, Goal: slot.ToShadow}, slot.Offer{Generation: generation, Goal: slot.ToActive, Scope: "n1"}
	for _, c := range []struct {
		name, reason, against string
		kind                  abi.Kind
		offer                 slot.Offer
		seen                  slot.Figures
		verdict               policy.Verdict
	}{
		{"good", "has answered 30 of 200 calls", "", abi.Select, inShadow, slot.Figures{Calls: 30, Compared: 30}, policy.Settled},
		{"too few to judge by", "in doubt: 1 of 30 answers worse than the active policy's, 20 ‰ may be; has answered 30 of 200 calls", "",
			abi.Select, inShadow, slot.Figures{Calls: 30, Compared: 30, Worse: 1}, policy.Wait},
		{"sure", "would not be promoted: 30 of 30 answers worse than the active policy's, 20 ‰ may be",
			"b: 30 of 30 answers worse than the active policy's, 20 ‰ may be", abi.Select, inShadow, slot.Figures{Calls: 30, Compared: 30, Worse: 30}, policy.Wait},
		{"in the scope of a canary", "in doubt: 3 of 3 answers worse than the active policy's, 50 ‰ may be; too few to judge by", "",
			abi.Refine, inScope, slot.Figures{Calls: 3, Compared: 3, Worse: 3}, policy.Wait},
	} {
		gate := slot.Gate{Calls: 200}
		if c.kind == abi.Refine {
			gate = slot.Gate{Soak: -1}
		}
		m, err := slot.New(slot.Config{Kind: c.kind, Shadow: gate})
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range []slot.Event{
			{Kind: slot.Offered, Offer: c.offer}, {Kind: slot.Verified, Generation: generation},
			{Kind: slot.Compiled, Generation: generation}, {Kind: slot.Warmed, Generation: generation},
			{Kind: slot.Observed, Generation: generation, Figures: slot.Figures{Calls: 1, Compared: 1}},
			{Kind: slot.Observed, Generation: generation, Figures: c.seen},
		} {
			if _, err := m.Step(ev, nil); err != nil {
				t.Fatal(err)
			}
		}
		l := m.Status().Lives[0]
		read := func(s slots.Status) []policy.Status {
			out, _ := policy.ReadStatuses([]*api.SlotStatus{told(s)})
			return out
		}
		own := slots.Life{Generation: generation, State: l.State.String(), Reason: l.Reason, Held: l.Held, Doubt: l.Doubt, Figures: slots.Figures(l.Figures)}
		other := slots.Life{Generation: generation, State: "active", Since: now.Add(-2 * policy.Quiet).UnixMicro()}
		reports := []policy.Report{
			{Node: "a", At: now, Statuses: read(slots.Status{Kind: c.kind.String(), Active: generation, Lives: []slots.Life{other}})},
			{Node: "b", At: now, Statuses: read(slots.Status{Kind: c.kind.String(), Candidate: uint64(m.Route().Candidate), Lives: []slots.Life{own}})},
		}
		if got := reports[1].Statuses[0].Lives[0].Reason; got != c.reason {
			t.Errorf("%s: reason %q", c.name, got)
		}
		if got := policy.Against(c.kind.String(), generation, now, reports); got != c.against {
			t.Errorf("%s: against it: %q", c.name, got)
		}
		trial := &policy.Trial{Module: policy.Module{Generation: generation}, Goal: policy.Active, Since: now.Add(-2 * policy.Quiet)}
		if v, why := (policy.Slot{Kind: c.kind.String(), Candidate: trial}).Judge(now, reports); v != c.verdict {
			t.Errorf("%s: verdict %d, %q", c.name, v, why)
		}
	}
}
