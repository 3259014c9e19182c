package market

import (
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
)

// TestRunningSequences checks that a request is listed as the sequences that its engine generates for it.
func TestRunningSequences(t *testing.T) {
	legs := []frontend.LocalLeg{
		{Request: policies.Request{Input: 10, Output: 5}},
		{Request: policies.Request{Input: 100, Output: 40, Prompts: 2, Sequences: 4}},
	}
	m := &Market{cfg: Config{Residents: func() []frontend.LocalLeg { return legs }}}
	want := append([]policies.Sequence{{Input: 10, Length: 15}}, slices.Repeat([]policies.Sequence{{Input: 50, Length: 60}}, 4)...)
	if got := m.runningSequences(); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	legs[1].Request.Sequences = 1 << 14
	if n := len(m.runningSequences()); n != maxRunning {
		t.Errorf("%d sequences are listed, want %d", n, maxRunning)
	}
}
