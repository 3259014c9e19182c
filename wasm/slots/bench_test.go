package slots

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/slot"
)

// report adds percentiles of what took how long.
func report(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	if len(took) == 0 {
		return
	}
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(took[len(took)*999/1000].Nanoseconds()), "p99.9-ns")
	b.ReportMetric(float64(took[len(took)-1].Nanoseconds()), "max-ns")
}

// BenchmarkRollback is one call: of a module that traps in it, at the last fault
// that is tolerated. When it returns, with the native policy's answer, another
// generation decides.
func BenchmarkRollback(b *testing.B) {
	c := config(b)
	c.Instances, c.Logger = 1, nil
	c.Gates[abi.Select].Faults = 1
	s, _ := running(b, c)
	code := trapsAt(6)
	words := bids(16, 1)
	selector := s.Selector()
	var took []time.Duration
	for g := uint64(1); b.Loop(); g++ {
		b.StopTimer()
		if err := s.Apply(want(proven(b, g, code))); err != nil {
			b.Fatal(err)
		}
		until(b, "active", func() bool { return s.slots[abi.Select].slot.Status().Route.Active == slot.Generation(g) })
		for range 5 {
			selector.Select(words)
		}
		b.StartTimer()
		from := time.Now()
		selector.Select(words)
		took = append(took, time.Since(from))
		if l, _ := s.slots[abi.Select].slot.EnterActive(); l.Generation == slot.Generation(g) {
			b.Fatal("it is still there")
		} else {
			l.Leave()
		}
	}
	report(b, took)
}

// BenchmarkSwaps is a call's time in one process, while nothing is swapped and
// while a new module is verified, compiled, warmed and put in force every 20 ms.
// Both take turns of 200 ms, so that what else the machine does falls on both.
func BenchmarkSwaps(b *testing.B) {
	c := config(b)
	c.Every, c.Logger = 64, nil
	s, _ := running(b, c)
	if err := s.Apply(want(proven(b, 1, other(1)))); err != nil {
		b.Fatal(err)
	}
	until(b, "active", func() bool { return state(s, 1) == "active" })
	var swapping atomic.Bool
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	swaps := 0
	group.Go(func() {
		for g := uint64(2); ctx.Err() == nil; {
			time.Sleep(20 * time.Millisecond)
			if swapping.Load() {
				_ = s.Apply(want(proven(b, g, other(int32(g)))))
				g++
				swaps++
			}
		}
	})
	words := bids(16, 1)
	selector := s.Selector()
	var took [2][]time.Duration
	var turn int
	next := time.Now().Add(200 * time.Millisecond)
	for b.Loop() {
		from := time.Now()
		selector.Select(words)
		now := time.Now()
		took[turn] = append(took[turn], now.Sub(from))
		if now.After(next) {
			turn = 1 - turn
			swapping.Store(turn == 1)
			next = now.Add(200 * time.Millisecond)
		}
	}
	cancel()
	group.Wait()
	for i, name := range []string{"still", "swapping"} {
		if len(took[i]) > 0 {
			slices.Sort(took[i])
			b.ReportMetric(float64(took[i][len(took[i])/2].Nanoseconds()), name+"-p50-ns")
			b.ReportMetric(float64(took[i][len(took[i])*999/1000].Nanoseconds()), name+"-p99.9-ns")
		}
	}
	b.ReportMetric(float64(swaps), "swaps")
}
