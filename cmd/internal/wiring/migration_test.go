package wiring

import (
	"math"
	"slices"
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
		if got := f.outlierDetector(policies.Cost{}).Excess(c.own, c.mean); got != c.excess {
			t.Errorf("preset %s: %d tokens where the mean is %d: excess %d, want %d", c.preset, c.own, c.mean, got, c.excess)
		}
	}
}

// TestModulesOfUnequalReplicas checks that no module, whose settings are those of all hosts, replaces a
// policy that counts with the cost of its replica where replicas differ in it.
func TestModulesOfUnequalReplicas(t *testing.T) {
	names := func(f Fleet) (out []string) {
		for _, m := range f.BuiltinModules() {
			out = append(out, m.Name)
		}
		return out
	}
	f := load(t, "")
	if got := names(f); !slices.Contains(got, "outlier") || !slices.Contains(got, "place-cheapest") {
		t.Errorf("equal replicas: %v", got)
	}
	f.Fleet.Replicas[1].TP = 4
	if got := names(f); !slices.Equal(got, []string{"partition-exact", "bid-least-load", "place-cheapest"}) {
		t.Errorf("unequal replicas: %v", got)
	}
}

// TestPlacementCountsCopies checks that placement counts with copies of prefixes where replicas copy them, over
// the link that is configured, or else the profile's, at the fleet's speed.
func TestPlacementCountsCopies(t *testing.T) {
	for _, c := range []struct {
		blocks, pull, mode string
		gbps               float64
		copied             float64 // microseconds per token of 131,072 bytes
	}{
		{"", "on", "live", 0, 0},
		{"b", "off", "live", 0, 0},
		{"b", "on", "place", 0, 0},
		{"b", "on", "live", 0, 2.62144},
		{"b", "on", "live", 100, 5.24288},
	} {
		f := load(t, "")
		f.Migration = config.Migration{Mode: c.mode, PrefixPull: c.pull, LinkGbps: c.gbps}
		f.Speed = 2
		p := f.Profiles[f.Fleet.Replicas[0].Model]
		p.KVBytesPerToken, p.LinkRate = 131_072, 50e9
		f.Profiles[f.Fleet.Replicas[0].Model] = p
		r := f.Fleet.Replicas[0]
		r.Blocks = c.blocks
		m := f.Market(r, nil)
		if got := m.CopySeconds * 1e6; math.Abs(got-c.copied) > 1e-9 {
			t.Errorf("%+v: %v µs for a token", c, got)
		}
		if m.Engine == nil || m.Engine.Cost != f.costs(r).Cost || m.Engine.Batch <= 0 || m.Engine.KV <= 0 {
			t.Errorf("%+v: prices count with %+v", c, m.Engine)
		}
	}
}
