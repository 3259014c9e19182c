package host

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/wasm/meter"
)

// TestCallsDoNotAllocate holds it for the kinds that are on the way of requests,
// for small modules and for Go.
func TestCallsDoNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	bids := sixteen()
	r := words{rand.New(rand.NewPCG(1, 1))}
	ask, a := r.ask(), r.arrival()
	check := func(name string, f func() error) {
		t.Helper()
		if n := testing.AllocsPerRun(100, func() {
			if err := f(); err != nil {
				t.Fatal(err)
			}
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

// BenchmarkCall is a decision end to end: encode, arm, call, check. Beside it,
// the native policy.
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
	ask := words{rand.New(rand.NewPCG(1, 1))}.ask()
	b.Run("go/quote", func(b *testing.B) {
		benchmark(b, instance(b, guest(b, Config{})), func(i *Instance) error { _, _, err := i.Quote(abi.Call{}, ask); return err })
	})
}

// benchmark reports the 5th percentile of batches beside the mean: on a shared
// machine the mean is the neighbours'.
func benchmark(b *testing.B, i *Instance, f func(*Instance) error) {
	const batch = 500
	b.ReportAllocs()
	var times []float64
	for b.Loop() {
		start := time.Now()
		for range batch {
			if err := f(i); err != nil {
				b.Fatal(err)
			}
		}
		times = append(times, float64(time.Since(start).Nanoseconds())/batch)
	}
	slices.Sort(times)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(times[len(times)/20], "ns/call")
	b.ReportMetric(times[len(times)/2], "median-ns/call")
	b.ReportMetric(float64(i.Fuel()), "ticks/call")
}

// BenchmarkHeartbeat is the longest gap between two beats of a goroutine that
// allocates, while another runs a policy without end, and while none runs.
func BenchmarkHeartbeat(b *testing.B) {
	for _, c := range []struct {
		name string
		busy bool
	}{{"idle", false}, {"runaway", true}} {
		b.Run(c.name, func(b *testing.B) {
			w := NewWatch()
			ctx, cancel := context.WithCancel(context.Background())
			watched := make(chan error, 1)
			go func() { watched <- w.Run(ctx) }()
			defer func() { cancel(); <-watched }()
			config := Config{Watch: w}
			config.Limits[abi.Select] = Limit{Fuel: meter.MaxFuel, Wall: time.Second}
			m := load(b, config, hosttest.Policy(selects(hosttest.Forever, hosttest.I64(0))).Encode())
			var gaps []float64
			for b.Loop() {
				var stop atomic.Bool
				most := make(chan time.Duration)
				go func() {
					longest, last := time.Duration(0), time.Now()
					for !stop.Load() {
						time.Sleep(500 * time.Microsecond)
						_ = make([]byte, 64<<10)
						now := time.Now()
						longest = max(longest, now.Sub(last))
						last = now
					}
					most <- longest
				}()
				if c.busy {
					i, err := m.Instantiate()
					if err != nil {
						b.Fatal(err)
					}
					if _, err := i.Select(abi.Call{}, sixteen()); CauseOf(err) != TimedOut {
						b.Fatal(err)
					}
					i.Close()
				} else {
					time.Sleep(time.Second)
				}
				stop.Store(true)
				gaps = append(gaps, float64((<-most).Microseconds())/1000)
			}
			slices.Sort(gaps)
			b.ReportMetric(gaps[len(gaps)/2], "median-gap-ms")
			b.ReportMetric(gaps[len(gaps)-1], "longest-gap-ms")
		})
	}
}

// BenchmarkLoad is from bytes to a first instance.
func BenchmarkLoad(b *testing.B) {
	run := func(b *testing.B, c Config, code []byte) {
		for b.Loop() {
			m, err := Load(context.Background(), c, code)
			if err != nil {
				b.Fatal(err)
			}
			i, err := m.Instantiate()
			if err != nil {
				b.Fatal(err)
			}
			i.Close()
			m.Close()
		}
	}
	b.Run("hand", func(b *testing.B) { run(b, Config{}, hosttest.Policy(hosttest.LeastLoad()).Encode()) })
	b.Run("go/cold", func(b *testing.B) { run(b, Config{}, hosttest.Guest(b)) })
	b.Run("go/cached", func(b *testing.B) { run(b, Config{Cache: sharedCache}, hosttest.Guest(b)) })
	b.Run("go/instantiate", func(b *testing.B) {
		m := guest(b, Config{})
		for b.Loop() {
			i, err := m.Instantiate()
			if err != nil {
				b.Fatal(err)
			}
			i.Close()
		}
	})
}
