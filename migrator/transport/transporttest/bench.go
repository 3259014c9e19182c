package transporttest

import (
	"context"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
)

// Rounds is the minimum number of interleaved rounds of a benchmark, over which medians
// are taken.
const Rounds = 7

// Volume is the number of bytes copied by one round of a benchmark.
const Volume = 256 << 20

// ScatteredLayout returns a pool of twice the benchmark's volume in blocks of one region
// of this size, as a layer's share of a block is.
func ScatteredLayout(bytes int64) transport.Layout {
	return transport.Layout{Blocks: int(2 * Volume / bytes), Regions: []transport.Region{{Stride: bytes, Bytes: bytes}}}
}

// Method copies the blocks of a plan. It returns how long that took; 0 means the duration
// of the call.
type Method func(transport.Plan) (time.Duration, error)

// PullMethod is the Method of a puller.
func PullMethod(ctx context.Context, p transport.Puller) Method {
	return func(plan transport.Plan) (time.Duration, error) {
		_, err := p.Pull(ctx, plan)
		return 0, err
	}
}

// CompareMethods measures methods to copy the same shuffled blocks of a layout. Each
// iteration of the benchmark runs a plain copy and then each method once, so that all of
// them see the same load of the machine. It reports the medians, in GB/s and as a share
// of the copy's (ratio-…).
func CompareMethods(b *testing.B, l transport.Layout, source, target *transport.Memory, methods map[string]Method) {
	b.Helper()
	n := int(Volume / l.BlockBytes())
	FillBytes(source.Bytes, 1)
	FillBytes(target.Bytes, 2)
	plan := ShuffledPlan(source, n)

	names := []string{"memcpy"}
	for name := range methods {
		names = append(names, name)
	}
	slices.Sort(names[1:])
	methods["memcpy"] = func(p transport.Plan) (time.Duration, error) {
		for i := range p.Src {
			for r := range l.Regions {
				copy(target.RegionBytes(p.Dst[i], r), source.RegionBytes(p.Src[i], r))
			}
		}
		return 0, nil
	}
	took := map[string][]time.Duration{}
	allocs := map[string]uint64{}
	round := func() {
		for _, name := range names {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			d, err := methods[name](plan)
			if err != nil {
				b.Fatalf("%s: %v", name, err)
			}
			if d == 0 {
				d = time.Since(start)
			}
			took[name] = append(took[name], d)
			runtime.ReadMemStats(&after)
			allocs[name] = after.Mallocs - before.Mallocs
		}
	}
	round() // touches every page
	clear(took)
	for b.Loop() {
		round()
	}
	for len(took["memcpy"]) < Rounds {
		round()
	}
	bytes := float64(int64(n) * l.BlockBytes())
	base := Median(took["memcpy"])
	for _, name := range names {
		m := Median(took[name])
		b.ReportMetric(bytes/m.Seconds()/1e9, name+"-GB/s")
		if name != "memcpy" {
			b.ReportMetric(base.Seconds()/m.Seconds(), "ratio-"+name)
			b.ReportMetric(float64(allocs[name])/float64(n), name+"-allocs/block")
		}
	}
	b.ReportMetric(0, "ns/op")
}

// Median returns the middle one of an odd number of durations.
func Median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}
