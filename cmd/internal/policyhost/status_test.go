package policyhost

import (
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/promotion"
	"github.com/cascadeinfer/cascade/wasm/slothost"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// TestFiguresReachTheReport: what a host counts of a generation is in its report, as
// the control plane reads it.
func TestFiguresReachTheReport(t *testing.T) {
	s := told(slothost.Status{Kind: "place", Lives: []slothost.Life{{
		Generation: 7, State: "canary", Calls: 50, Faults: 1, Starved: 2, Figures: slothost.Figures{Compared: 31, Differ: 13, Worse: 12},
	}}})
	read, dropped := policyslots.ReadStatuses([]*api.SlotStatus{s})
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
	inShadow, inScope := promotion.Offer{Generation: generation, Goal: promotion.ToShadow}, promotion.Offer{Generation: generation, Goal: promotion.ToActive, Scope: "n1"}
	for _, c := range []struct {
		name, reason, against string
		kind                  abi.Kind
		offer                 promotion.Offer
		seen                  promotion.Figures
		verdict               policyslots.Verdict
	}{
		{"good", "has answered 30 of 200 calls", "", abi.Select, inShadow, promotion.Figures{Calls: 30, Compared: 30}, policyslots.Settled},
		{"too few to judge by", "in doubt: 1 of 30 answers worse than the active policy's, 20 ‰ may be; has answered 30 of 200 calls", "",
			abi.Select, inShadow, promotion.Figures{Calls: 30, Compared: 30, Worse: 1}, policyslots.Wait},
		{"sure", "would not be promoted: 30 of 30 answers worse than the active policy's, 20 ‰ may be",
			"b: 30 of 30 answers worse than the active policy's, 20 ‰ may be", abi.Select, inShadow, promotion.Figures{Calls: 30, Compared: 30, Worse: 30}, policyslots.Wait},
		{"in the scope of a canary", "in doubt: 3 of 3 answers worse than the active policy's, 50 ‰ may be; too few to judge by", "",
			abi.Refine, inScope, promotion.Figures{Calls: 3, Compared: 3, Worse: 3}, policyslots.Wait},
	} {
		gate := promotion.Gate{Calls: 200}
		if c.kind == abi.Refine {
			gate = promotion.Gate{Soak: -1}
		}
		m, err := promotion.New(promotion.Config{Kind: c.kind, Shadow: gate})
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range []promotion.Event{
			{Kind: promotion.Offered, Offer: c.offer}, {Kind: promotion.Verified, Generation: generation},
			{Kind: promotion.Compiled, Generation: generation}, {Kind: promotion.Warmed, Generation: generation},
			{Kind: promotion.Observed, Generation: generation, Figures: promotion.Figures{Calls: 1, Compared: 1}},
			{Kind: promotion.Observed, Generation: generation, Figures: c.seen},
		} {
			if _, err := m.Step(ev, nil); err != nil {
				t.Fatal(err)
			}
		}
		l := m.Status().Lives[0]
		read := func(s slothost.Status) []policyslots.Status {
			out, _ := policyslots.ReadStatuses([]*api.SlotStatus{told(s)})
			return out
		}
		own := slothost.Life{Generation: generation, State: l.State.String(), Reason: l.Reason, Held: l.Held, Doubt: l.Doubt, Figures: slothost.Figures(l.Figures)}
		other := slothost.Life{Generation: generation, State: "active", Since: now.Add(-2 * policyslots.Quiet).UnixMicro()}
		reports := []policyslots.Report{
			{Node: "a", At: now, Statuses: read(slothost.Status{Kind: c.kind.String(), Active: generation, Lives: []slothost.Life{other}})},
			{Node: "b", At: now, Statuses: read(slothost.Status{Kind: c.kind.String(), Candidate: uint64(m.Route().Candidate), Lives: []slothost.Life{own}})},
		}
		if got := reports[1].Statuses[0].Lives[0].Reason; got != c.reason {
			t.Errorf("%s: reason %q", c.name, got)
		}
		if got := policyslots.Against(c.kind.String(), generation, now, reports); got != c.against {
			t.Errorf("%s: against it: %q", c.name, got)
		}
		trial := &policyslots.Trial{Module: policyslots.Module{Generation: generation}, Goal: policyslots.Active, Since: now.Add(-2 * policyslots.Quiet)}
		if v, why := (policyslots.Slot{Kind: c.kind.String(), Candidate: trial}).Judge(now, reports); v != c.verdict {
			t.Errorf("%s: verdict %d, %q", c.name, v, why)
		}
	}
}
