package slothost

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// report reports percentiles of durations.
func report(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	if len(took) == 0 {
		return
	}
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(took[len(took)*999/1000].Nanoseconds()), "p99.9-ns")
	b.ReportMetric(float64(took[len(took)-1].Nanoseconds()), "max-ns")
}

// BenchmarkRollback measures a call in which the module traps and exceeds its fault
// limit. When the call returns, with the native policy's answer, another generation
// decides.
func BenchmarkRollback(b *testing.B) {
	c := config(b)
	c.Instances, c.Logger = 1, nil
	c.Gates[abi.Select].Faults = 1
	s, _ := running(b, c)
	code := trapsAt(6)
	words := bids(16, 1)
	selector := s.Selector()
	var took []time.Duration
	for g := lifecycle.Generation(1); b.Loop(); g++ {
		b.StopTimer()
		apply(b, s, want(stable(b, g, code)))
		waitFor(b, "active", func() bool { return s.slots[abi.Select].state().Active == g })
		for range 5 {
			selector.Select(words)
		}
		b.StartTimer()
		from := time.Now()
		selector.Select(words)
		took = append(took, time.Since(from))
		if s.slots[abi.Select].state().Active == g {
			b.Fatal("it is still there")
		}
	}
	report(b, took)
}

// The turns of BenchmarkSwaps.
const (
	still    = iota // nothing else runs
	spinning        // another goroutine counts on the other processor
	swapping        // modules are verified, compiled, warmed, activated and freed
	turns
)

const (
	turn      = 200 * time.Millisecond
	swapEvery = 20 * time.Millisecond
	longest   = 50_000 // ns: longer calls count as this
	// heap is the heap size of a migrator: with less, garbage would be collected more
	// often than there, which also stops calls.
	heap = 32 << 20
)

// histogram counts calls by their duration in nanoseconds, so that measuring allocates no
// memory.
type histogram [longest + 1]uint32

func (h *histogram) percentile(p float64) float64 {
	all, below := uint64(0), uint64(0)
	for _, n := range h {
		all += uint64(n)
	}
	for took, n := range h {
		if below += uint64(n); float64(below) >= p*float64(all) {
			return float64(took)
		}
	}
	return 0
}

// BenchmarkSwaps measures the duration of calls while a new, uncached module is verified,
// compiled, warmed and activated every 20 ms (50 a second, some 50,000 calls apart). It
// compares it with undisturbed calls, and with calls while the other processor counts for
// as long as a module takes. The three take turns of 200 ms in one process. 1,000 swaps
// take a minute: -benchtime 180000000x.
func BenchmarkSwaps(b *testing.B) {
	c := config(b)
	c.Every, c.Logger, c.Tick = 64, nil, 0
	s, _ := running(b, c)
	active := func() lifecycle.Generation { return s.slots[abi.Select].state().Active }
	swap := func(g lifecycle.Generation) { // on any goroutine
		if err := s.Apply(want(stable(b, g, other(int32(g))))); err != nil {
			b.Error(err)
		}
	}
	const first = 10
	from := time.Now()
	for g := range lifecycle.Generation(first) {
		swap(g + 1)
		waitFor(b, "active", func() bool { return active() == lifecycle.Generation(g+1) })
	}
	takes := time.Since(from) / first
	ballast := make([]byte, heap)
	runtime.GC()
	var now atomic.Int32
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	swaps, late := 0, 0
	group.Go(func() {
		// Do not poll the module's phase here: that would disturb calls, too.
		for g := lifecycle.Generation(first); ctx.Err() == nil; time.Sleep(swapEvery) {
			switch now.Load() {
			case spinning:
				for from := time.Now(); time.Since(from) < takes; {
				}
			case swapping:
				if active() != g {
					late++
					continue
				}
				swaps++
				g++
				swap(g)
			}
		}
	})
	words := bids(16, 1)
	selector := s.Selector()
	var took [turns]histogram
	at, end := still, time.Now().Add(turn)
	for b.Loop() {
		from := time.Now()
		selector.Select(words)
		to := time.Now()
		took[at][min(to.Sub(from), longest)]++
		if to.After(end) {
			at = (at + 1) % turns
			now.Store(int32(at))
			end = to.Add(turn)
		}
	}
	cancel()
	group.Wait()
	runtime.KeepAlive(ballast)
	base := took[still].percentile(0.999)
	for i, name := range [turns]string{"still", "spinning", "swapping"} {
		b.ReportMetric(took[i].percentile(0.5), name+"-p50-ns")
		b.ReportMetric(took[i].percentile(0.999), name+"-p99.9-ns")
		b.ReportMetric(took[i].percentile(0.999)/base, name+"/still")
	}
	b.ReportMetric(float64(swaps), "swaps")
	b.ReportMetric(float64(late), "late-swaps")
	b.ReportMetric(float64(takes.Microseconds()), "µs/swap")
}
