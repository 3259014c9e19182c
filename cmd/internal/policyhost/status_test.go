package policyhost

import (
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/promotion"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// TestFiguresReachTheReport checks that the control plane decodes a host's counts of a
// generation from its report.
func TestFiguresReachTheReport(t *testing.T) {
	s := policyslots.EncodeStatus(lifecycle.SlotStatus{Kind: "place", Modules: []lifecycle.Status{{
		Generation: 7, Phase: lifecycle.Canary, Calls: 50, Faults: 1, Starved: 2, Figures: lifecycle.Figures{Compared: 31, Differ: 13, Worse: 12},
	}}})
	read, dropped := policyslots.DecodeStatuses([]*api.SlotStatus{s})
	if dropped != 0 || len(read) != 1 || len(read[0].Modules) != 1 {
		t.Fatalf("%+v, %d dropped", read, dropped)
	}
	l := read[0].Modules[0]
	if got, want := [6]uint64{l.Calls, l.Faults, l.Starved, l.Figures.Compared, l.Figures.Differ, l.Figures.Worse}, [6]uint64{50, 1, 2, 31, 13, 12}; got != want {
		t.Errorf("%d, want %d", got, want)
	}
}

// TestEvidenceReachesTheFleet checks that evidence of a slot against a module, significant
// or not, keeps the fleet from promoting it and from making it stable.
func TestEvidenceReachesTheFleet(t *testing.T) {
	const generation = 7
	now := time.Unix(1e9, 0)
	inShadow, inScope := promotion.Offer{Generation: generation, Goal: lifecycle.ToShadow}, promotion.Offer{Generation: generation, Goal: lifecycle.ToActive, Scope: "n1"}
	for _, c := range []struct {
		name, reason, against string
		kind                  lifecycle.Kind
		offer                 promotion.Offer
		seen                  lifecycle.Figures
		verdict               policyslots.Verdict
	}{
		{"good", "has answered 30 of 200 calls", "", lifecycle.BidSelect, inShadow, lifecycle.Figures{Calls: 30, Compared: 30}, policyslots.Stable},
		{"too few to judge by", "inconclusive: 1 of 30 answers are worse than the active policy's, at most 20 ‰ may be; has answered 30 of 200 calls", "",
			lifecycle.BidSelect, inShadow, lifecycle.Figures{Calls: 30, Compared: 30, Worse: 1}, policyslots.Wait},
		{"sure", "would not be promoted: 30 of 30 answers are worse than the active policy's, at most 20 ‰ may be",
			"b: 30 of 30 answers are worse than the active policy's, at most 20 ‰ may be", lifecycle.BidSelect, inShadow, lifecycle.Figures{Calls: 30, Compared: 30, Worse: 30}, policyslots.Wait},
		{"in the scope of a canary", "inconclusive: 3 of 3 answers are worse than the active policy's, at most 50 ‰ may be; too few answers to judge by", "",
			lifecycle.Refine, inScope, lifecycle.Figures{Calls: 3, Compared: 3, Worse: 3}, policyslots.Wait},
	} {
		gate := promotion.Gate{Calls: 200}
		if c.kind == lifecycle.Refine {
			gate = promotion.Gate{Soak: -1}
		}
		m, err := promotion.New(promotion.Config{Kind: c.kind, Shadow: gate})
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range []promotion.Event{
			{Kind: promotion.Offered, Offer: c.offer}, {Kind: promotion.Verified, Generation: generation},
			{Kind: promotion.Compiled, Generation: generation}, {Kind: promotion.Warmed, Generation: generation},
			{Kind: promotion.Observed, Generation: generation, Figures: lifecycle.Figures{Calls: 1, Compared: 1}},
			{Kind: promotion.Observed, Generation: generation, Figures: c.seen},
		} {
			if _, err := m.Step(ev, nil); err != nil {
				t.Fatal(err)
			}
		}
		l := m.Status().Modules[0]
		read := func(s lifecycle.SlotStatus) []lifecycle.SlotStatus {
			out, _ := policyslots.DecodeStatuses([]*api.SlotStatus{policyslots.EncodeStatus(s)})
			return out
		}
		own := l
		other := lifecycle.Status{Generation: generation, Phase: lifecycle.Active, SinceUnixMillis: now.Add(-2 * policyslots.IdleAfter).UnixMilli()}
		reports := []policyslots.Report{
			{Node: "a", At: now, Statuses: read(lifecycle.SlotStatus{Kind: c.kind, Active: generation, Modules: []lifecycle.Status{other}})},
			{Node: "b", At: now, Statuses: read(lifecycle.SlotStatus{Kind: c.kind, Candidate: m.Route().Candidate, Modules: []lifecycle.Status{own}})},
		}
		if got := reports[1].Statuses[0].Modules[0].Why(); got != c.reason {
			t.Errorf("%s: reason %q", c.name, got)
		}
		if got := policyslots.Blocked(c.kind, generation, now, reports); got != c.against {
			t.Errorf("%s: against it: %q", c.name, got)
		}
		trial := &policyslots.Trial{Module: policyslots.Module{Generation: generation}, Goal: lifecycle.ToActive, Since: now.Add(-2 * policyslots.IdleAfter)}
		if v, why := (policyslots.Slot{Kind: c.kind, Candidate: trial}).Judge(now, reports); v != c.verdict {
			t.Errorf("%s: verdict %d, %q", c.name, v, why)
		}
	}
}
