package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/control"
)

// TestPolicyTables: of slots that only ever had the built-in policy no host is
// shown, of what ended the last of each host, and who was never asked. Who has been
// silent is not counted.
func TestPolicyTables(t *testing.T) {
	age, long := 0.1, 20.0
	p := control.Policies{Enabled: true, Slots: []control.PolicySlot{
		{Slot: "place", Nodes: []control.PolicyNode{{Node: "quiet", ReportAge: &age}, {Node: "gone", ReportAge: &long}}},
		{Slot: "refine", Nodes: []control.PolicyNode{{Node: "r0", ReportAge: &age, SlotStatus: lifecycle.SlotStatus{Modules: []lifecycle.Status{
			{Generation: 3, Phase: lifecycle.RolledBack, Reason: "older"}, {Generation: 4, Phase: lifecycle.Rejected, Reason: "1 fault"},
			{Generation: 5, Phase: lifecycle.Shadow},
			{Generation: 6, Phase: lifecycle.Canary, Calls: 50, Starved: 2, Figures: lifecycle.Figures{Compared: 31, Differ: 13, Worse: 12}},
		}}}}},
	}}
	ends := []lifecycle.Status{{Generation: 9, Phase: lifecycle.Active, Reason: "its statement expires tomorrow"}}
	p.Slots = append(p.Slots, control.PolicySlot{Slot: "outlier", Nodes: []control.PolicyNode{
		{Node: "r0", ReportAge: &age, SlotStatus: lifecycle.SlotStatus{Active: 9, Modules: ends}}, {Node: "r1", ReportAge: &age, SlotStatus: lifecycle.SlotStatus{Active: 9, Modules: ends}}}})
	for n := range 5 {
		p.Slots[1].RolledBack = append(p.Slots[1].RolledBack, control.PolicyRollback{Generation: lifecycle.Generation(n), Name: "m", Reason: fmt.Sprintf("reason %d", n)})
	}
	var out strings.Builder
	if err := writePolicies(&out, p); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1 fault", "not asked yet", "the host was too busy for 2 calls (starved)", "│ compared │ differ │ worse │", "│       31 │     13 │    12 │", "reason 4", "2 generations rolled back earlier", "│ 1 of 1 │", "gone has not reported place recently"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q", want)
		}
	}
	if got := strings.Count(out.String(), "outlier: generation 9 decides, and its statement expires tomorrow."); got != 1 {
		t.Errorf("an end is reported %d times", got)
	}
	for _, no := range []string{"quiet", "older", "reason 1", "2 of 1"} {
		if strings.Contains(out.String(), no) {
			t.Errorf("%q is shown", no)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// TestStatusSlots: the state of a fleet has a line for each slot, and for hosts where
// something else decides than on most.
func TestStatusSlots(t *testing.T) {
	age := 0.1
	on := func(name string, active lifecycle.Generation) control.PolicyNode {
		return control.PolicyNode{Node: name, ReportAge: &age,
			SlotStatus: lifecycle.SlotStatus{Active: active, Modules: []lifecycle.Status{{Generation: 7, Phase: lifecycle.Active, Calls: 5}}}}
	}
	behind, refusing := on("r3", 0), on("r4", 7)
	behind.Modules[0].Phase, behind.Modules[0].Reason = lifecycle.Rejected, "3 faults"
	refusing.Refused = "no key is known"
	p := control.Policies{Enabled: true, Slots: []control.PolicySlot{
		{Slot: "place", Nodes: []control.PolicyNode{{Node: "r1", ReportAge: &age}, {Node: "r2", ReportAge: &age}}},
		{Slot: "refine", Nodes: []control.PolicyNode{on("r1", 7), on("r2", 7), behind, refusing}},
	}}
	var out strings.Builder
	if err := writeSlots(&out, p); err != nil {
		t.Fatal(err)
	}
	_, differ, found := strings.Cut(out.String(), "hosts that differ")
	for _, want := range []string{"r3", "3 faults", "r4", "no key is known"} {
		if !strings.Contains(differ, want) {
			t.Errorf("no %q", want)
		}
	}
	if !found || strings.Contains(differ, "r1") || strings.Contains(differ, "place") || !strings.Contains(out.String(), "Every host: cascade policy status.") {
		t.Error("it shows others")
	}
	if t.Failed() {
		t.Log(out.String())
	}
	out.Reset()
	if err := writeSlots(&out, control.Policies{Slots: p.Slots[:1]}); err != nil || strings.Contains(out.String(), "hosts that differ") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
