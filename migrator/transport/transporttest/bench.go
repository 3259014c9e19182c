package transporttest

import (
	"context"
	"math/rand/v2"
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
func CompareMethods(b *testing.B, l transport.Layout, source, target *transport.Memory, ways map[string]Method) {
	b.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	n := int(Volume / l.BlockBytes())
	var plan transport.Plan
	from, to := rng.Perm(l.Blocks), rng.Perm(l.Blocks)
	for i := range n {
		plan.Src, plan.Dst = append(plan.Src, uint32(from[i])), append(plan.Dst, uint32(to[i]))
	}
	fill(source.Bytes, 1)
	fill(target.Bytes, 2)
	plan.Sums = source.Sums(nil, plan.Src)

	names := []string{"memcpy"}
	for name := range ways {
		names = append(names, name)
	}
	slices.Sort(names[1:])
	ways["memcpy"] = func(p transport.Plan) (time.Duration, error) {
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
			d, err := ways[name](plan)
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

// OpenPuller runs both ends of a pair until the benchmark ends, and returns an open
// puller between them.
func OpenPuller(b testing.TB, p Pair) transport.Puller {
	b.Helper()
	b.Cleanup(func() {
		p.Source.Memory.Close()
		p.Target.Memory.Close()
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	for _, e := range []End{p.Source, p.Target} {
		go func() { done <- e.Transport.Run(ctx) }()
	}
	b.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				b.Error(err)
			}
		}
	})
	limit := time.Now().Add(patience)
	for {
		offer, err := p.Source.Transport.Export(transport.Grant{Migration: "m/1", Receiver: Receiver, Deadline: time.Now().Add(time.Hour)})
		if err == nil {
			puller, err := p.Target.Transport.Open(ctx, Receiver, offer)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { puller.Close() })
			return puller
		}
		if time.Now().After(limit) {
			b.Fatal(err)
		}
		runtime.Gosched()
	}
}
