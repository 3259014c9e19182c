package slothost

import (
	"slices"
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
