package modules

import (
	"testing"

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
