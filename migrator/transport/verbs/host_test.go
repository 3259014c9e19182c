package verbs

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// Pools of 8,192 tokens, in 512 blocks of 16, of a model of 28 layers: K and V of each
// layer apart, or all of a block together. Blocks are small: a READ costs the same for
// any size.
const tokens8k = 512

func layeredLayout() transport.Layout {
	l := transport.Layout{Blocks: 2 * tokens8k}
	for r := range int64(56) {
		l.Regions = append(l.Regions, transport.Region{Offset: r * int64(l.Blocks) * 64, Stride: 64, Bytes: 64})
	}
	return l
}

func contiguousLayout() transport.Layout {
	return transport.Layout{Blocks: 2 * tokens8k, Regions: []transport.Region{{Stride: 56 * 64, Bytes: 56 * 64}}}
}

// withGaps has gaps between neighbouring blocks.
func withGaps() transport.Layout {
	return transport.Layout{Blocks: 2 * tokens8k, Regions: []transport.Region{{Stride: 57 * 64, Bytes: 56 * 64}}}
}

// namedPlans returns plans by how their blocks lie.
func namedPlans(m *transport.Memory) map[string]transport.Plan {
	rng := rand.New(rand.NewPCG(1, 2))
	from, to := rng.Perm(m.Blocks), rng.Perm(m.Blocks)
	out := map[string]transport.Plan{}
	for name, at := range map[string]func(i int) (int, int){
		"scattered":        func(i int) (int, int) { return from[i], to[i] },
		"contiguous":       func(i int) (int, int) { return 100 + i, 7 + i },
		"source is in row": func(i int) (int, int) { return 100 + i, to[i] },
		"target is in row": func(i int) (int, int) { return from[i], 7 + i },
	} {
		out[name] = transporttest.NewPlan(m, tokens8k, at)
	}
	return out
}

// TestPlanRequests counts the READs of a plan of 8,192 tokens, and the calls that post
// them.
func TestPlanRequests(t *testing.T) {
	c := newControl(t)
	requireNothingOpen(t)
	const pieces = 4 // the fake's
	for _, x := range []struct {
		name           string
		source, target transport.Layout
		table          string
		reads, posts   int
	}{
		{"a layer's blocks", layeredLayout(), layeredLayout(), "scattered", 56 * 512, 56 * 512 / 128},
		{"a layer's blocks", layeredLayout(), layeredLayout(), "contiguous", 56, 1},
		{"a layer's blocks", layeredLayout(), layeredLayout(), "source is in row", 56 * 512 / pieces, 56 * 512 / 128},
		{"a layer's blocks", layeredLayout(), layeredLayout(), "target is in row", 56 * 512, 56 * 512 / 128},
		{"blocks of all layers", contiguousLayout(), contiguousLayout(), "scattered", 512, 512 / 128},
		{"blocks of all layers", contiguousLayout(), contiguousLayout(), "contiguous", 1, 1},
		{"blocks of all layers", contiguousLayout(), contiguousLayout(), "source is in row", 512 / pieces, 512 / 128},
		{"into blocks with gaps", contiguousLayout(), withGaps(), "contiguous", 512 / pieces, 512 / 128},
		{"of blocks with gaps", withGaps(), contiguousLayout(), "contiguous", 512, 512 / 128},
	} {
		l := start(t, x.source, x.target)
		puller, plan := l.Open(), namedPlans(l.Source.Memory)[x.table]
		reads, posts := c.Calls("request"), c.Calls("ibv_post_send")
		if _, err := l.Pull(puller, plan); err != nil {
			t.Errorf("%s, %s: %v", x.name, x.table, err)
		}
		// Some blocks are neighbours by chance.
		if n := c.Calls("request") - reads; n > x.reads || n < x.reads*99/100 {
			t.Errorf("%s, %s: %d READs, want %d", x.name, x.table, n, x.reads)
		}
		if n := c.Calls("ibv_post_send") - posts; n > x.posts || n < x.posts*99/100 {
			t.Errorf("%s, %s: %d calls, want %d", x.name, x.table, n, x.posts)
		}
		l.Stop()
	}
}

// BenchmarkHost measures what a processor does for a plan of 8,192 tokens besides
// verifying checksums: from the block table to posted READs, on a device that does
// nothing.
func BenchmarkHost(b *testing.B) {
	c := newControl(b)
	for _, x := range []struct {
		name   string
		layout transport.Layout
	}{{"layers", layeredLayout()}, {"together", contiguousLayout()}} {
		for _, table := range []string{"scattered", "source is in row", "contiguous"} {
			b.Run(x.name+"/"+table, func(b *testing.B) {
				l := start(b, x.layout, x.layout)
				p, plan := l.Open().(*puller), namedPlans(l.Source.Memory)[table]
				c.Set("fake_sink", 1)
				defer c.Set("fake_sink", 0)
				var took []time.Duration // the machine's moods are in some, not in the median
				b.ReportAllocs()
				for b.Loop() {
					start := time.Now()
					testkit.NoError(b, plan.Validate(p.remote, p.memory.Layout))
					for cur := p.newCursor(plan); !cur.over(); {
						n := p.fillBatch(cur)
						p.posted++
						testkit.Must(p.pair.Post(p.work[:n]))
						testkit.Must(p.queue.Poll(p.done))
					}
					took = append(took, time.Since(start))
				}
				b.ReportMetric(float64(transporttest.Median(took).Nanoseconds())/1e3, "µs/plan")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
