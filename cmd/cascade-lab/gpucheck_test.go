package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/measure"
)

// TestTablesCompare checks that a rate is compared with the contiguous copy of its own part and owner,
// if there is one.
func TestTablesCompare(t *testing.T) {
	k := checkResult{Rows: []measure.Row{
		{Part: measure.Within, Path: "a call per block", Rate: 1e9}, // the contiguous copy has failed
		{Part: measure.Within, Path: "kernel", Groups: 16, Rate: 8e9},
		{Part: measure.Across, Path: "contiguous, from A", Rate: 4e9},
		{Part: measure.Across, Path: "kernel, from A", Groups: 16, Rate: 3e9},
		{Part: measure.Decode, Path: measure.ByKernel, Of: "A", Groups: 16},
		{Part: measure.Across, Path: "contiguous, from B", Rate: 8e9},
		{Part: measure.Across, Path: "kernel, from B", Groups: 16, Rate: 4e9},
	}}
	k.Goals = measure.EvaluateGoals(k.Rows)
	var got []string
	tables := k.tables()
	for _, table := range tables {
		for _, row := range table.Rows {
			got = append(got, row[0]+": "+row[len(row)-1])
		}
	}
	want := []string{"a call per block: -", "kernel: -", "contiguous, from A: 1.00", "kernel, from A: 0.75", "beside a transfer by the kernel, of A: -",
		"contiguous, from B: 1.00", "kernel, from B: 0.50"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if notes := tables[len(tables)-1].Notes; len(notes) != 3 || !strings.Contains(notes[0], "no rate of a contiguous copy") {
		t.Errorf("%q", notes)
	}
	if err := k.unmetGoals(); err == nil || !strings.Contains(err.Error(), "2 of 3 goals") {
		t.Errorf("%v", err)
	}
}
