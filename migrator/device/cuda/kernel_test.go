package cuda

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// TestKernels runs every kernel over regions of every alignment, and compares the copied
// bytes and the sums with a plain copy. The fake runs the code of a GPU's threads, one
// thread after the other.
func TestKernels(t *testing.T) {
	d, _ := open(t)
	r := newHarness(t, d)
	defer r.close()
	const (
		blocks, entries = 12, 7
		pool            = 300_000
	)
	type region struct{ src, sstride, dst, dstride, bytes uint64 }
	for name, regions := range map[string][]region{
		"aligned":   {{0, 4096, 64, 8192, 4096}, {60_000, 512, 150_000, 512, 512}},
		"unaligned": {{7, 701, 3, 704, 700}, {60_001, 64, 150_000, 65, 64}},
		"one side":  {{0, 1024, 5, 1024, 1000}, {60_000, 16, 150_008, 16, 16}},
		"short":     {{0, 16, 0, 16, 1}, {60_000, 16, 150_000, 16, 15}, {90_000, 32, 170_000, 32, 17}},
		"pieces":    {{0, 5008, 0, 5008, 5000}, {100_000, 16, 150_000, 16, 8}},
	} {
		for _, piece := range []uint64{1 << 16, 1024, 16} {
			for _, block := range []int{32, 64, 512} {
				rng := rand.New(rand.NewPCG(uint64(block), piece))
				src := testkit.Must(r.a.AllocHost(pool))
				dst := testkit.Must(r.a.AllocHost(pool))
				pieces, most := uint64(0), uint64(0)
				for _, g := range regions {
					most = max(most, g.bytes)
				}
				pieces = (most + piece - 1) / piece
				items := entries * uint64(len(regions)) * pieces
				table := testkit.Must(r.a.AllocHost(1<<16 + int64(items)*8))
				w := table.Uint64s()
				for i, g := range regions {
					copy(w[i*transport.KernelRegionWords:], []uint64{uint64(src.Pointer()) + g.src, g.sstride, uint64(dst.Pointer()) + g.dst, g.dstride, g.bytes})
				}
				pairs := table.Uint32s()[len(regions)*transport.KernelRegionWords*2:]
				to := rng.Perm(blocks)
				for e := range entries {
					pairs[2*e], pairs[2*e+1] = uint32(rng.IntN(blocks)), uint32(to[e])
				}
				for _, k := range []string{transport.KernelCopy, transport.KernelGather, transport.KernelScatter, transport.KernelSum, transport.KernelSumDestination} {
					for i := range src.Uint64s() {
						src.Uint64s()[i], dst.Uint64s()[i] = rng.Uint64(), rng.Uint64()
					}
					want := bytes.Clone(dst.Bytes())
					var sums []uint64
					for e := range uint64(entries) {
						for _, g := range regions {
							from, to := uint64(pairs[2*e]), uint64(pairs[2*e+1])
							if k == transport.KernelGather {
								to = e
							}
							if k == transport.KernelScatter {
								from = e
							}
							part := src.Bytes()[g.src+from*g.sstride:][:g.bytes]
							if k == transport.KernelSumDestination {
								part = dst.Bytes()[g.dst+to*g.dstride:][:g.bytes]
							}
							sums = append(sums, transport.RawSum(part))
							if k != transport.KernelSum && k != transport.KernelSumDestination {
								copy(want[g.dst+to*g.dstride:], part)
							}
						}
					}
					code := testkit.Must(r.module.Kernel(k))
					at := uint64(table.Pointer())
					out := w[1<<13:]
					testkit.NoError(t, code.Launch(r.stream, 3, block, []uint64{at, uint64(len(regions)), at + uint64(len(regions)*transport.KernelRegionWords*8), entries, piece, pieces, at + 1<<16}))
					testkit.NoError(t, r.stream.Wait())
					if !bytes.Equal(dst.Bytes(), want) {
						t.Errorf("%s, pieces of %d, %d threads: %s: the memory differs from a plain copy", name, piece, block, k)
					}
					for i, sum := range sums {
						got := uint64(0)
						for _, s := range out[uint64(i)*pieces:][:pieces] {
							got += s
						}
						if got != sum {
							t.Errorf("%s, pieces of %d, %d threads: %s: sum %d is %#x, want %#x", name, piece, block, k, i, got, sum)
						}
					}
				}
				src.Close()
				dst.Close()
				table.Close()
			}
		}
	}
}
