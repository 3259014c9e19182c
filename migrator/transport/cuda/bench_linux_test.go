package cuda

import (
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// eightK is the pool of 8,192 tokens of a model of 28 layers: K and V of each, 512 blocks
// of 16 tokens. The blocks are small, since the host's work does not depend on their
// size.
var eightK = func() transport.Layout {
	l := transport.Layout{Blocks: 1024}
	for r := range int64(56) {
		l.Regions = append(l.Regions, transport.Region{Offset: r * 1024 * 64, Stride: 64, Bytes: 64})
	}
	return l
}()

// BenchmarkHost measures what a processor does for a plan of 8,192 tokens: from the block
// table to the submitted work, and from its end to verified blocks. With the fake, a
// processor does the GPU's work, which is not counted.
func BenchmarkHost(b *testing.B) {
	g := newGPU(b)
	l := transporttest.Start(b, newPair(b, g, eightK, eightK))
	p, plan := l.Open().(*puller), transporttest.ShuffledPlan(l.Source.Memory, 512)
	from, to := poolEnd{p.remote.pool, p.session.Layout}, poolEnd{p.local.pool, p.memory.Layout}
	c := tilingFor(eightK)
	var submit, verify []time.Duration // the median ignores outliers
	b.ReportAllocs()
	for b.Loop() {
		if err := g.withContext(p.context, func(*gpuContext) error {
			start := time.Now()
			if err := plan.Validate(from.layout, to.layout); err != nil {
				return err
			}
			if err := p.stream.submitCopies(16, c, from, to, plan.Src, plan.Dst); err != nil {
				return err
			}
			submit = append(submit, time.Since(start))
			if err := p.stream.waitDone(); err != nil {
				return err
			}
			start = time.Now()
			if bad := p.stream.appendCorrupt(c, to.layout, plan.Sums, 0, nil); bad != nil {
				b.Errorf("%d entries are corrupt", len(bad))
			}
			verify = append(verify, time.Since(start))
			return nil
		}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(transporttest.Median(submit).Nanoseconds())/1e3, "submit-µs/plan")
	b.ReportMetric(float64(transporttest.Median(verify).Nanoseconds())/1e3, "verify-µs/plan")
	b.ReportMetric(0, "ns/op")
}
