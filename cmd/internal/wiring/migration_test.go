package wiring

import (
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/place"
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
	if got := names(f); !slices.Contains(got, "outlier") || !slices.Contains(got, "place-forecast") {
		t.Errorf("equal replicas: %v", got)
	}
	f.Fleet.Replicas[1].Blocks, f.Migration.Mode, f.Migration.PrefixPull = "b", config.MigrationLive, "on"
	if got := names(f); !slices.Contains(got, "outlier") || slices.Contains(got, "place-forecast") {
		t.Errorf("one replica copies prefixes: %v", got)
	}
	f.Fleet.Replicas[1].TP = 4
	if got := names(f); !slices.Equal(got, []string{"partition-exact", "bid-least-load"}) {
		t.Errorf("unequal replicas: %v", got)
	}
}

// TestPlacementCountsCopies checks that placement counts with copies of prefixes where replicas copy them, over
// the link that is configured, or else the profile's, at the fleet's speed.
func TestPlacementCountsCopies(t *testing.T) {
	for _, c := range []struct {
		blocks, pull, mode string
		gbps               float64
		copied             int64 // picoseconds per token of 131,072 bytes
	}{
		{"", "on", "live", 0, 0},
		{"b", "off", "live", 0, 0},
		{"b", "on", "place", 0, 0},
		{"b", "on", "live", 0, 5_242_880 / 2},
		{"b", "on", "live", 100, 10_485_760 / 2},
	} {
		f := load(t, "")
		f.Migration = config.Migration{Mode: c.mode, PrefixPull: c.pull, LinkGbps: c.gbps}
		f.Speed = 2
		p := f.Profiles[f.Fleet.Replicas[0].Model]
		p.KVBytesPerToken, p.LinkRate = 131_072, 50e9
		f.Profiles[f.Fleet.Replicas[0].Model] = p
		r := f.Fleet.Replicas[0]
		r.Blocks = c.blocks
		got := f.forecast(f.costs(r))
		if got.Prices.Copied != c.copied {
			t.Errorf("%+v: %d ps for a token", c, got.Prices.Copied)
		}
		if got.Margin != place.DefaultMargin/2 || got.ShorterMargin != place.DefaultShorterMargin/2 {
			t.Errorf("%+v: margins of %d and %d µs at twice the speed", c, got.Margin, got.ShorterMargin)
		}
		for _, m := range f.BuiltinModules() {
			if m.Name == "place-forecast" && !strings.HasSuffix(string(m.Configuration), "\nmargin 125000\nshorter-margin 500000\n") {
				t.Errorf("%+v: the module's configuration is\n%s", c, m.Configuration)
			}
		}
		f.Speed = 1e9 // 0 would be the default of one second
		if got = f.forecast(f.costs(r)); got.Margin != 1 || got.ShorterMargin != 1 {
			t.Errorf("%+v: margins of %d and %d µs at a great speed", c, got.Margin, got.ShorterMargin)
		}
	}
}
