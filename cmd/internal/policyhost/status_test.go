package policyhost

import (
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
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
	for _, c := range []struct {
		name, against string
		kind          lifecycle.Kind
		own           lifecycle.Status
		verdict       policyslots.Verdict
	}{
		{"good", "", lifecycle.BidSelect, lifecycle.Status{Phase: lifecycle.Shadow, Reason: "has answered 30 of 200 calls"}, policyslots.Stable},
		{"too few to judge by", "", lifecycle.BidSelect, lifecycle.Status{Phase: lifecycle.Shadow, Inconclusive: "one is worse"}, policyslots.Wait},
		{"sure", "b: all are worse", lifecycle.BidSelect, lifecycle.Status{Phase: lifecycle.Shadow, Blocked: "all are worse"}, policyslots.Wait},
		{"in the scope of a canary", "", lifecycle.Refine, lifecycle.Status{Phase: lifecycle.Canary, Inconclusive: "one is worse"}, policyslots.Wait},
	} {
		read := func(s lifecycle.SlotStatus) []lifecycle.SlotStatus {
			out, _ := policyslots.DecodeStatuses([]*api.SlotStatus{policyslots.EncodeStatus(s)})
			return out
		}
		own, other := c.own, lifecycle.Status{Generation: generation, Phase: lifecycle.Active, SinceUnixMillis: now.Add(-2 * policyslots.IdleAfter).UnixMilli()}
		own.Generation, own.Figures = generation, lifecycle.Figures{Calls: 30, Compared: 30}
		reports := []policyslots.Report{
			{Node: "a", At: now, Statuses: read(lifecycle.SlotStatus{Kind: c.kind, Active: generation, Modules: []lifecycle.Status{other}})},
			{Node: "b", At: now, Statuses: read(lifecycle.SlotStatus{Kind: c.kind, Modules: []lifecycle.Status{own}})},
		}
		if got := reports[1].Statuses[0].Modules[0].Why(); got != own.Why() {
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
