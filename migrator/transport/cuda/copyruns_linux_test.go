package cuda

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// TestCopyRuns pulls plans with runs that the copy engines copy, and plans without.
func TestCopyRuns(t *testing.T) {
	dense := transport.Layout{Blocks: 64, Regions: []transport.Region{{Stride: 32 << 10, Bytes: 32 << 10}, {Offset: 64 * 32 << 10, Stride: 32 << 10, Bytes: 32 << 10}}}
	pair := newPairFunc(t)
	var copies func(call string) int
	if os.Getenv("CASCADE_TEST_CUDA") == "" {
		copies = newControl(t).Calls
	}
	p := pair(t, dense, dense)
	open := startPair(t, p)
	for i := range p.Source.Memory.Bytes {
		p.Source.Memory.Bytes[i] = byte(i * 31 >> 7)
	}
	p.Source.Mirror.Store()
	puller, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer puller.Close()
	run := orderedPlan(p.Source.Memory, 3, 40, 8)
	loose := orderedPlan(p.Source.Memory, 0, 10, 1)
	mixed := transport.Plan{Src: slices.Concat(loose.Src, run.Src, []uint32{60}), Dst: slices.Concat(loose.Dst, run.Dst, []uint32{5})}
	mixed.Sums = p.Source.Memory.Sums(nil, mixed.Src)
	for _, c := range []struct {
		name             string
		plan             transport.Plan
		batches, kernels int
	}{
		{"one long run", run, 1, 1},
		{"a run too short", orderedPlan(p.Source.Memory, 3, 40, 7), 0, 1},
		{"a run between blocks", mixed, 1, 3},
	} {
		clear(p.Target.Memory.Bytes)
		p.Target.Mirror.Store()
		var batches, kernels int
		if copies != nil {
			batches, kernels = copies("cuMemcpyBatchAsync_v2"), copies("cuLaunchKernel")
		}
		if _, err := puller.Pull(t.Context(), c.plan); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if copies != nil && (copies("cuMemcpyBatchAsync_v2")-batches != c.batches || copies("cuLaunchKernel")-kernels != c.kernels) {
			t.Errorf("%s: %d batches and %d kernels, want %d and %d", c.name, copies("cuMemcpyBatchAsync_v2")-batches, copies("cuLaunchKernel")-kernels, c.batches, c.kernels)
		}
		p.Target.Mirror.Load()
		for i := range c.plan.Src {
			for r := range dense.Regions {
				if !slices.Equal(p.Target.Memory.RegionBytes(c.plan.Dst[i], r), p.Source.Memory.RegionBytes(c.plan.Src[i], r)) {
					t.Fatalf("%s: entry %d differs", c.name, i)
				}
			}
		}
		c.plan.Sums = slices.Clone(c.plan.Sums)
		c.plan.Sums[len(c.plan.Sums)-1]++
		var corrupt *transport.CorruptError
		if _, err := puller.Pull(t.Context(), c.plan); !errors.As(err, &corrupt) || !slices.Equal(corrupt.Blocks, []int{len(c.plan.Src) - 1}) {
			t.Errorf("%s: a wrong sum: %v", c.name, err)
		}
	}
}

// TestCopyEngines checks that with CopyEngines the copy engines copy everything, in
// portions that one call describes, and that only the kernel of the checksums runs.
// Without the batch call, pieces are copied one by one.
func TestCopyEngines(t *testing.T) {
	g := newGPU(t)
	g.config.CopyEngines = true
	warmUp(t, g)
	t.Run("Conformance", func(t *testing.T) {
		transporttest.Run(t, func(t *testing.T, source, target transport.Layout) transporttest.Pair {
			dir := socketDir(t)
			return transporttest.Pair{Source: newEnd(t, g, dir, source), Target: newEnd(t, g, dir, target)}
		})
	})
	c := newControl(t)
	dir := socketDir(t)
	pair := transporttest.Pair{Source: newEnd(t, g, dir, eightK), Target: newEnd(t, g, dir, eightK)}
	open := startPair(t, pair)
	fillPattern(pair.Source.Memory.Bytes)
	pair.Source.Mirror.Store()
	puller, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer puller.Close()
	plan := shuffledPlan(pair.Source.Memory, 512)
	for _, batches := range []bool{true, false} {
		g.current.batches.Store(batches)
		kernels, calls, single := c.Calls("cuLaunchKernel"), c.Calls("cuMemcpyBatchAsync_v2"), c.Calls("cuMemcpyDtoDAsync_v2")
		if _, err := puller.Pull(t.Context(), plan); err != nil {
			t.Error(err)
		}
		kernels, calls, single = c.Calls("cuLaunchKernel")-kernels, c.Calls("cuMemcpyBatchAsync_v2")-calls, c.Calls("cuMemcpyDtoDAsync_v2")-single
		pieces := 56 * 512 // except for neighbours by chance
		rounds := (512 + maxBatch/56 - 1) / (maxBatch / 56)
		wantCalls, least, most := rounds, 0, 0
		if !batches {
			wantCalls, least, most = 0, pieces*99/100, pieces
		}
		if kernels != rounds || calls != wantCalls || single < least || single > most {
			t.Errorf("with batches %v: %d kernels, %d batch calls, %d single copies; want %d, %d, and %d to %d", batches, kernels, calls, single, rounds, wantCalls, least, most)
		}
	}
}
