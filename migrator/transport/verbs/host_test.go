package verbs

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// Tables of 8,192 tokens, in 512 blocks of 16, of a model of 28 layers: K and V of each
// layer apart, or all of a block together. Blocks are small: a READ is as much work
// whatever it brings.
const tokens8k = 512

func layers() transport.Layout {
	l := transport.Layout{Blocks: 2 * tokens8k}
	for r := range int64(56) {
		l.Regions = append(l.Regions, transport.Region{Offset: r * int64(l.Blocks) * 64, Stride: 64, Bytes: 64})
	}
	return l
}

func together() transport.Layout {
	return transport.Layout{Blocks: 2 * tokens8k, Regions: []transport.Region{{Stride: 56 * 64, Bytes: 56 * 64}}}
}

// apart has gaps between blocks that lie side by side.
func apart() transport.Layout {
	return transport.Layout{Blocks: 2 * tokens8k, Regions: []transport.Region{{Stride: 57 * 64, Bytes: 56 * 64}}}
}

// tables are plans by what is known of their blocks.
func tables(m *transport.Memory) map[string]transport.Plan {
	rng := rand.New(rand.NewPCG(1, 2))
	from, to := rng.Perm(m.Blocks), rng.Perm(m.Blocks)
	out := map[string]transport.Plan{}
	for name, at := range map[string]func(i int) (int, int){
		"scattered":        func(i int) (int, int) { return from[i], to[i] },
		"contiguous":       func(i int) (int, int) { return 100 + i, 7 + i },
		"source is in row": func(i int) (int, int) { return 100 + i, to[i] },
		"target is in row": func(i int) (int, int) { return from[i], 7 + i },
	} {
		p := transport.Plan{}
		for i := range tokens8k {
			s, d := at(i)
			p.Src, p.Dst = append(p.Src, uint32(s)), append(p.Dst, uint32(d))
		}
		p.Sums = m.Sums(nil, p.Src)
		out[name] = p
	}
	return out
}

// TestRequestsOfAPlan counts what a plan of 8,192 tokens is for the NIC: READs, and
// calls that post them.
func TestRequestsOfAPlan(t *testing.T) {
	c := control(t)
	nothingLeft(t)
	const pieces = 4 // the fake's
	for _, x := range []struct {
		name           string
		source, target transport.Layout
		table          string
		reads, posts   int
	}{
		{"a layer's blocks", layers(), layers(), "scattered", 56 * 512, 56 * 512 / 128},
		{"a layer's blocks", layers(), layers(), "contiguous", 56, 1},
		{"a layer's blocks", layers(), layers(), "source is in row", 56 * 512 / pieces, 56 * 512 / 128},
		{"a layer's blocks", layers(), layers(), "target is in row", 56 * 512, 56 * 512 / 128},
		{"blocks of all layers", together(), together(), "scattered", 512, 512 / 128},
		{"blocks of all layers", together(), together(), "contiguous", 1, 1},
		{"blocks of all layers", together(), together(), "source is in row", 512 / pieces, 512 / 128},
		{"into blocks with gaps", together(), apart(), "contiguous", 512 / pieces, 512 / 128},
		{"of blocks with gaps", apart(), together(), "contiguous", 512, 512 / 128},
	} {
		source, target := side(t, x.source), side(t, x.target)
		stop := runs(t, source, target)
		rng := rand.New(rand.NewPCG(8, 8))
		randomly(source.Memory.Bytes[:1<<16], rng)
		puller := opened(t, transporttest.Pair{Source: source, Target: target}, "a/1")
		plan := tables(source.Memory)[x.table]
		reads, posts := c.Calls("request"), c.Calls("ibv_post_send")
		if _, err := puller.Pull(t.Context(), plan); err != nil {
			t.Errorf("%s, %s: %v", x.name, x.table, err)
		}
		// Some neighbours are neighbours by chance.
		if n := c.Calls("request") - reads; n > x.reads || n < x.reads*99/100 {
			t.Errorf("%s, %s: %d READs, want %d", x.name, x.table, n, x.reads)
		}
		if n := c.Calls("ibv_post_send") - posts; n > x.posts || n < x.posts*99/100 {
			t.Errorf("%s, %s: %d calls, want %d", x.name, x.table, n, x.posts)
		}
		if err := puller.Close(); err != nil {
			t.Error(err)
		}
		stop()
	}
}

// BenchmarkHost is what a processor does for a plan of 8,192 tokens besides checking
// sums: from the block table to posted READs, on a device that does nothing.
func BenchmarkHost(b *testing.B) {
	c := control(b)
	for _, x := range []struct {
		name   string
		layout transport.Layout
	}{{"layers", layers()}, {"together", together()}} {
		for _, table := range []string{"scattered", "source is in row", "contiguous"} {
			b.Run(x.name+"/"+table, func(b *testing.B) {
				pair := transporttest.Pair{Source: side(b, x.layout), Target: side(b, x.layout)}
				p := transporttest.OpenPuller(b, pair).(*puller)
				plan := tables(pair.Source.Memory)[table]
				c.Set("fake_sink", 1)
				defer c.Set("fake_sink", 0)
				var took []time.Duration // the machine's moods are in some, not in the median
				b.ReportAllocs()
				for b.Loop() {
					start := time.Now()
					if err := plan.Validate(p.remote, p.memory.Layout); err != nil {
						b.Fatal(err)
					}
					for cur := p.newCursor(plan); !cur.over(); {
						n := p.fillBatch(cur)
						p.posted++
						if _, err := p.pair.Post(4, p.work[:n]); err != nil {
							b.Fatal(err)
						}
						if _, err := p.queue.Poll(p.done); err != nil {
							b.Fatal(err)
						}
					}
					took = append(took, time.Since(start))
				}
				b.ReportMetric(float64(transporttest.Median(took).Nanoseconds())/1e3, "µs/plan")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
