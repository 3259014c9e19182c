package main

import (
	"slices"
	"testing"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/engine/sim"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// TestParseStages checks which stages --stages describes, and what it refuses.
func TestParseStages(t *testing.T) {
	got, err := parseStages("1024:4,4096:2,8")
	if err != nil || !slices.Equal(got.Cuts, []policies.Tokens{1024, 4096}) || !slices.Equal(got.Counts, []int{4, 2, 8}) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"1024:4", "4,4", "x:4,4", "1024:x,4", "1024:4,", ":4,4"} {
		if got, err := parseStages(bad); err == nil {
			t.Errorf("%q gives %+v", bad, got)
		}
	}
}

// TestFaultsInOrder checks that faults of one time happen in the same order in every run.
func TestFaultsInOrder(t *testing.T) {
	e := simFlags{profile: "h100-llama-3.1-8b", attention: "sum", tp: 1, fail: []string{"0@1s"}, drain: []string{"1@1s"}, slow: []string{"2@1s..2s:0.5"}}
	for range 20 {
		var kinds []sim.FaultKind
		for _, f := range testkit.Must(e.config(&cobra.Command{}, 1)).Faults {
			kinds = append(kinds, f.Kind)
		}
		if want := []sim.FaultKind{sim.Fail, sim.Drain, sim.Slow}; !slices.Equal(kinds, want) {
			t.Fatalf("%q, want %q", kinds, want)
		}
	}
}
