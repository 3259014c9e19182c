package guest_test

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/guesttest"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// TestGarbageOfBids makes bids with a guest that allocates 2 KiB for each. Without deferred
// work, it collects garbage in the middle of a call, which has no fuel for that. When the
// host runs its deferred work between calls, bids never fail and always cost the same.
func TestGarbageOfBids(t *testing.T) {
	const calls, every = 30_000, 500
	m := guesttest.Load(t, guesttest.Build(t, filepath.Join("testdata", "guest")), host.Config{})
	if !m.HasDeferred() {
		t.Fatal("a guest of the SDK does not rest")
	}
	ask := abi.QuoteArgs{Occupancy: policies.Occupancy{Capacity: 1e6, Held: 10}, Migration: policies.Migration{Request: "r", Length: 2048}}
	run := func(g *host.Instance, rest bool) (made int, most, rests int64, err error) {
		for ; made < calls; made++ {
			if _, _, err = g.Quote(abi.Call{}, ask); err != nil {
				return made, most, rests, err
			}
			most = max(most, g.Fuel())
			if rest && made%every == 0 {
				if err := g.RunDeferred(); err != nil {
					t.Fatalf("rest after %d calls: %v", made, err)
				}
				rests = max(rests, g.Fuel())
			}
		}
		return made, most, rests, nil
	}
	rested := guesttest.Start(t, m)
	if made, most, rests, err := run(rested, true); err != nil || most > m.Limit(abi.Quote).Fuel/10 {
		t.Errorf("with rests, %d calls of at most %d ticks: %v", made, most, err)
	} else {
		now, first := rested.Memory()
		t.Logf("%d calls of at most %d ticks, rests of at most %d; memory %d KiB, at first %d", made, most, rests, now>>10, first>>10)
	}
	g := guesttest.Start(t, m)
	made, most, _, err := run(g, false)
	t.Logf("without rests: %d calls of at most %d ticks, then %v", made, most, err)
	var fault *host.Fault
	if err != nil && (!errors.As(err, &fault) || fault.Cause != host.OutOfFuel) {
		t.Errorf("after %d calls without rests: %v", made, err)
	}
	g.Close()
	if err := g.RunDeferred(); err == nil {
		t.Error("a closed instance rests")
	}
}
