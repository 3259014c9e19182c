package main

import (
	"slices"
	"testing"

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
