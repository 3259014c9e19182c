package host

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/wasm/meter"
)

// TestCallsDoNotAllocate covers the kinds that are decided per request, in small modules
// and in Go.
func TestCallsDoNotAllocate(t *testing.T) {
	testkit.SkipUnderRace(t)
	bids := sixteen()
	r := hosttest.NewRandom(1)
	ask, a := r.QuoteArgs(), r.Arrival()
	check := func(name string, f func() error) {
		t.Helper()
		if n := testing.AllocsPerRun(100, func() {
			testkit.NoError(t, f())
		}); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
	small := hand(t, hosttest.LeastLoad())
	check("select, small", func() error { _, err := small.Select(abi.Call{}, bids); return err })
	record := &Record{}
	small.Record(record)
	if _, err := small.Select(abi.Call{}, bids); err != nil {
		t.Fatal(err)
	}
	check("select, recorded", func() error {
		small.Record(record)
		_, err := small.Select(abi.Call{}, bids)
		return err
	})
	i := instance(t, guest(t, Config{}))
	check("select", func() error { _, err := i.Select(abi.Call{}, bids); return err })
	check("quote", func() error { _, _, err := i.Quote(abi.Call{}, ask); return err })
	check("excess", func() error { _, err := i.Excess(abi.Call{}, 100, 10); return err })
	check("place", func() error { _, err := i.Place(abi.Call{}, a); return err })
}

// BenchmarkCall measures a decision end to end: encode, arm, call, check. It measures the
// native policy for comparison.
func BenchmarkCall(b *testing.B) {
	bids := sixteen()
	b.Run("native/select16", func(b *testing.B) {
		b.ReportAllocs()
		var s policies.Selector = bidask.LeastLoad{}
		for b.Loop() {
			s.Select(bids)
		}
	})
	b.Run("hand/empty", func(b *testing.B) {
		benchmark(b, hand(b, selects(hosttest.Result(1, 0))), func(i *Instance) error {
			i.stack[0] = 0
			_, err := i.invoke(abi.Select, i.fns[abi.Select], 0)
			return err
		})
	})
	b.Run("hand/select16", func(b *testing.B) {
		benchmark(b, hand(b, hosttest.LeastLoad()), func(i *Instance) error { _, err := i.Select(abi.Call{}, bids); return err })
	})
	b.Run("go/select16", func(b *testing.B) {
		benchmark(b, instance(b, guest(b, Config{})), func(i *Instance) error { _, err := i.Select(abi.Call{}, bids); return err })
	})
	ask := hosttest.NewRandom(1).QuoteArgs()
	b.Run("go/quote", func(b *testing.B) {
		benchmark(b, instance(b, guest(b, Config{})), func(i *Instance) error { _, _, err := i.Quote(abi.Call{}, ask); return err })
	})
}

// benchmark reports the 5th percentile of batches in addition to the mean, which on a
// shared host depends on the other load.
func benchmark(b *testing.B, i *Instance, f func(*Instance) error) {
	const batch = 500
	b.ReportAllocs()
	var times []float64
	for b.Loop() {
		start := time.Now()
		for range batch {
			testkit.NoError(b, f(i))
		}
		times = append(times, float64(time.Since(start).Nanoseconds())/batch)
	}
	slices.Sort(times)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(times[len(times)/20], "ns/call")
	b.ReportMetric(times[len(times)/2], "median-ns/call")
	b.ReportMetric(float64(i.Fuel()), "ticks/call")
}

// BenchmarkHeartbeat measures the interval between two beats of a goroutine that
// allocates, and sleeps half a millisecond between them, while another goroutine runs an
// endless policy, for slices of several lengths, and while none runs. The two take turns,
// so that other load affects both: the difference is caused by the policy.
func BenchmarkHeartbeat(b *testing.B) {
	w := NewWatchdog()
	testkit.Run(b, w.Run)
	names := []string{"idle"}
	modules := []*Module{nil}
	for _, slice := range []int64{meter.DefaultSlice, 1 << 14, 1 << 18} {
		config := Config{Watchdog: w}
		config.Meter.Slice = slice
		config.Limits[abi.Select] = Limit{Fuel: meter.MaxFuel, Wall: time.Second}
		names = append(names, fmt.Sprint("slice", slice>>10, "k"))
		modules = append(modules, load(b, config, hosttest.Policy(selects(hosttest.Forever, hosttest.I64(0))).Encode()))
	}
	gaps := make([][]float64, len(names))
	for b.Loop() {
		for k, m := range modules {
			var stop atomic.Bool
			beat := make(chan []float64)
			go func() {
				var list []float64
				for last := time.Now(); !stop.Load(); {
					time.Sleep(500 * time.Microsecond)
					_ = make([]byte, 64<<10)
					now := time.Now()
					list = append(list, float64(now.Sub(last).Microseconds())/1000)
					last = now
				}
				beat <- list
			}()
			if m != nil {
				i := testkit.Must(m.Instantiate())
				if _, err := i.Select(abi.Call{}, sixteen()); CauseOf(err) != TimedOut {
					b.Fatal(err)
				}
				i.Close()
			} else {
				time.Sleep(time.Second)
			}
			stop.Store(true)
			gaps[k] = append(gaps[k], <-beat...)
		}
	}
	b.ReportMetric(0, "ns/op")
	for k, list := range gaps {
		slices.Sort(list)
		b.ReportMetric(list[len(list)*95/100], names[k]+"-p95-ms")
		b.ReportMetric(list[len(list)-1], names[k]+"-longest-ms")
	}
}

// BenchmarkLoad measures the time from the bytes of a module to its first instance.
func BenchmarkLoad(b *testing.B) {
	run := func(b *testing.B, c Config, code []byte) {
		for b.Loop() {
			m := testkit.Must(Load(context.Background(), c, code))
			i := testkit.Must(m.Instantiate())
			i.Close()
			m.Close()
		}
	}
	b.Run("hand", func(b *testing.B) { run(b, Config{}, hosttest.Policy(hosttest.LeastLoad()).Encode()) })
	b.Run("go/cold", func(b *testing.B) { run(b, Config{}, hosttest.Guest(b)) })
	b.Run("go/cached", func(b *testing.B) { run(b, Config{Cache: hosttest.Cache(b)}, hosttest.Guest(b)) })
	b.Run("go/instantiate", func(b *testing.B) {
		m := guest(b, Config{})
		for b.Loop() {
			i := testkit.Must(m.Instantiate())
			i.Close()
		}
	})
}
