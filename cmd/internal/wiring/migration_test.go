package wiring

import (
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/policies"
)

// TestOverloadedReplicas checks from which load on a replica sells requests: the default
// preset ignores small excesses, the paper's ignores none.
func TestOverloadedReplicas(t *testing.T) {
	for _, c := range []struct {
		preset            string
		own, mean, excess policies.Tokens
	}{
		{config.PresetDefault, 40_000, 30_000, 10_000},
		{config.PresetDefault, 37_000, 30_000, 0}, // below a quarter
		{config.PresetDefault, 5000, 1000, 0},
		{config.PresetDefault, 5200, 1000, 4200},
		{config.PresetPaper, 40_000, 30_000, 10_000},
		{config.PresetPaper, 37_000, 30_000, 0},
		{config.PresetPaper, 2, 1, 1},
	} {
		f := Fleet{Fleet: config.Fleet{Preset: c.preset}}
		if got := f.outlierDetector().Excess(c.own, c.mean); got != c.excess {
			t.Errorf("preset %s: %d tokens where the mean is %d: excess %d, want %d", c.preset, c.own, c.mean, got, c.excess)
		}
	}
}
