//go:build unix

package sim

import (
	"syscall"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// BenchmarkRun simulates 100 replicas, 512 tokens in, 128 out, batches of at most 64. CPU time counts the
// garbage collector's threads, and no waiting for other processes.
func BenchmarkRun(b *testing.B) {
	h200, err := cost.Builtin("h200-llama-3.1-8b")
	testkit.NoError(b, err)
	for _, name := range Policies() {
		b.Run(name, func(b *testing.B) {
			const n = 100_000
			before := cpuTime(b)
			for b.Loop() {
				result, _ := run(b, Config{Profile: h200, Replicas: 100, MaxBatch: 64, Policy: name}, mix(n, 4000, 1))
				b.ReportMetric(float64(result.Engines.GenerationTokens)/float64(result.Engines.Iterations), "batch")
			}
			b.ReportMetric(float64(b.N)*n/b.Elapsed().Minutes(), "requests/min")
			b.ReportMetric(float64(b.N)*n/(cpuTime(b)-before).Minutes(), "requests/CPU-min")
		})
	}
}

// cpuTime returns the CPU time of this process so far.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	testkit.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
