package host

import (
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// guest loads the Go guest, whose machine code is kept in the tests' cache.
func guest(t testing.TB, c Config) *Module {
	t.Helper()
	code := hosttest.Guest(t)
	c.Cache = hosttest.Cache(t)
	return load(t, c, code)
}

// TestGuestsThatMisbehave covers the faults of a Go guest, and their errors and logs.
func TestGuestsThatMisbehave(t *testing.T) {
	m := guest(t, Config{})
	for _, c := range []struct {
		mode  string
		cause Cause
		text  string
	}{
		{"panic", Trapped, "no bid pleases me"},
		{"index", Trapped, "index out of range"},
		{"recurse", OutOfFuel, ""},
		{"sleep", Trapped, "deadlock"},
	} {
		i := instance(t, m)
		testkit.NoError(t, i.Configure(abi.Call{}, []byte(c.mode)))
		_, err := i.Select(abi.Call{}, sixteen())
		f, ok := err.(*Fault)
		if !ok || f.Cause != c.cause || !strings.Contains(err.Error(), c.text) || i.Dead() == nil {
			t.Errorf("%s: %v\n%+v", c.mode, err, f)
		}
	}
	// A guest that never frees memory ends at its memory limit.
	i := instance(t, m)
	i.Configure(abi.Call{}, []byte("hoard"))
	for n := 0; i.Dead() == nil; n++ {
		if _, err := i.Select(abi.Call{}, sixteen()); n > 2000 || err != nil && i.Dead() == nil {
			t.Fatalf("after %d calls: %v", n, err)
		}
	}
	if now, _ := i.Memory(); now > m.config.Meter.Pages<<16 {
		t.Errorf("the memory grew to %d bytes", now)
	}
}

// TestGuestCollectsItsGarbage checks that the collector of a guest that allocates 2 KiB a
// call keeps up for as long as the instance lives. It needs a clock that advances.
func TestGuestCollectsItsGarbage(t *testing.T) {
	var c Config
	c.Kinds = []abi.Kind{abi.Select}
	c.Limits[abi.Select].Fuel = 50_000_000
	i := instance(t, guest(t, c))
	i.Configure(abi.Call{}, []byte("churn"))
	calls := testkit.Size(50_000, 1_000_000)
	most := int64(0)
	for n := range calls {
		if _, err := i.Select(abi.Call{}, sixteen()); err != nil {
			t.Fatalf("call %d: %v", n, err)
		}
		most = max(most, i.Fuel())
	}
	now, first := i.Memory()
	t.Logf("%d MiB of garbage: memory %d KiB, %d KiB when it was new; at most %d ticks a call", calls/512, now>>10, first>>10, most)
}
