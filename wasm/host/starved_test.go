package host

import (
	"math"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/wasm/meter"
)

// TestStarved checks that a call counts as starved if it consumed less than half of its fuel,
// and less than code consumes in the time.
func TestStarved(t *testing.T) {
	for _, c := range []struct {
		fuel, burnt int64
		wall        time.Duration
		want        bool
	}{
		{50_000, 24_999, 250 * time.Millisecond, true},
		{50_000, 25_000, 250 * time.Millisecond, false},
		{50_000, 50_001, 250 * time.Millisecond, false},
		{50_000, 9_999, time.Millisecond, true},
		{50_000, 10_000, time.Millisecond, false},
		{meter.MaxFuel, 9_999_999, time.Second, true},
		{meter.MaxFuel, 10_000_000, time.Second, false},
		{1, 0, time.Second, false},
		{50_000, 0, time.Nanosecond, false},
	} {
		if got := (Limit{Fuel: c.fuel, Wall: c.wall}).isStarved(c.burnt); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestWatchdogDetectsStarvedCalls ends an endless call after a wall limit that is too short
// to run on any host, and after one that it used completely.
func TestWatchdogDetectsStarvedCalls(t *testing.T) {
	for wall, want := range map[time.Duration]bool{math.MaxInt64 / 2: true, time.Nanosecond: false} {
		w := NewWatchdog()
		c := Config{Watchdog: w}
		c.Limits[abi.Select] = Limit{Fuel: meter.MaxFuel, Wall: wall}
		i := instance(t, load(t, c, hosttest.Policy(hosttest.LeastLoad(hosttest.Forever)).Encode()))
		failed := make(chan error, 1)
		go func() {
			_, err := i.Select(abi.Call{ID: 1}, sixteen())
			failed <- err
		}()
		now := time.Now()
		for byte(i.running.Load()) != killed {
			w.check(now)
			now = now.Add(wall)
		}
		err := <-failed
		if CauseOf(err) != TimedOut || Starved(err) != want || Starved(i.Dead()) {
			t.Errorf("wall limit %v: %v", wall, err)
		}
	}
	if Starved(nil) {
		t.Error("no error")
	}
}
