package plugins_test

import (
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/guesttest"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// TestLargestQuestions repeatedly makes calls with the largest number of requests that a
// migrator sends: its own, and at most 16,384 as a sample of the next stage. It checks that
// neither memory nor fuel comes near its limit. (With Go's default garbage collection, ten
// calls were enough to run out of memory.)
func TestLargestQuestions(t *testing.T) {
	const calls, next, own = 15, 1 << 14, 1 << 12
	b := border(2 * next)
	b.Local = b.Local[:own]
	for _, name := range []string{"refine-weighted", "refine-paper"} {
		m := guesttest.Load(t, guesttest.Build(t, name+".go"), host.Config{})
		g := guesttest.Start(t, m)
		most := int64(0)
		for i := range calls {
			if _, err := g.Refine(abi.Call{}, b); err != nil {
				t.Fatalf("%s, call %d: %v", name, i, err)
			}
			most = max(most, g.Fuel())
		}
		now, first := g.Memory()
		l := m.Limit(abi.Refine)
		t.Logf("%s: %d requests take at most %d of %d ticks, memory %d of at first %d bytes", name, next+own, most, l.Fuel, now, first)
		if most > l.Fuel/3 || now > l.Pages<<16*3/4 {
			t.Errorf("%s: %d of %d ticks, %d of %d bytes of memory: there is no head room", name, most, l.Fuel, now, l.Pages<<16)
		}
		// One more is too many for a frame: the call is not made, and the instance stays alive.
		b := b
		b.Next = make([]policies.Sequence, l.Frame/16)
		if _, err := g.Refine(abi.Call{}, b); host.CauseOf(err) != host.TooLarge || g.Dead() != nil {
			t.Errorf("%s: a question beyond the frame: %v", name, err)
		}
	}
}
