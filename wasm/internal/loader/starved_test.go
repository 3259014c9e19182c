package loader

import (
	"context"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/wasm/meter"
	"github.com/cascadeinfer/cascade/wasm/policy"
)

// TestSlowIsNotStarved checks that code that never ends is a fault in shadow as soon as its
// thread has been scheduled, although it has consumed almost none of its fuel.
func TestSlowIsNotStarved(t *testing.T) {
	w := host.NewWatchdog()
	testkit.Run(t, w.Run)
	linked := policy.NewNativeRecorder(natives, 1, 0, nil)
	c := config(abi.Select)
	c.Watch, c.InForce = w, func(use func(lifecycle.Generation, Policy)) { use(0, linked) }
	c.Limits[abi.Select] = host.Limit{Fuel: meter.MaxFuel, Wall: 20 * time.Millisecond}
	m := made(t, c, offer(t, hosttest.LeastLoadModule(hosttest.Forever), abi.Select, nil), nil)
	end := time.Now().Add(time.Minute)
	for {
		linked.Select([]policies.Bid{{Load: 1}})
		f, err := m.Replay(context.Background())
		if err != nil {
			if host.CauseOf(err) != host.TimedOut || host.Starved(err) || f.Calls != 0 {
				t.Errorf("%+v, %v", f, err)
			}
			return
		}
		if f != (lifecycle.Figures{}) || time.Now().After(end) {
			t.Fatalf("%+v", f)
		}
	}
}
