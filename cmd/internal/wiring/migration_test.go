package wiring

import (
	"math"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
)

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
		m := f.Market(r)
		if got := m.CopySeconds * 1e6; math.Abs(got-c.copied) > 1e-9 {
			t.Errorf("%+v: %v µs for a token", c, got)
		}
		if m.Engine == nil || m.Engine.Cost != f.costs(r).Cost || m.Engine.Batch <= 0 || m.Engine.KV <= 0 {
			t.Errorf("%+v: prices count with %+v", c, m.Engine)
		}
	}
}
