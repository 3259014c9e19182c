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
	l := transporttest.Start(t, pair(t, dense, dense))
	puller, from := l.Open(), l.Source.Memory
	run := transporttest.OrderedPlan(from, 3, 40, 8)
	loose := transporttest.OrderedPlan(from, 0, 10, 1)
	mixed := transport.Plan{Src: slices.Concat(loose.Src, run.Src, []uint32{60}), Dst: slices.Concat(loose.Dst, run.Dst, []uint32{5})}
	mixed.Sums = from.Sums(nil, mixed.Src)
	for _, c := range []struct {
		name             string
		plan             transport.Plan
		batches, kernels int
	}{
		{"one long run", run, 1, 1},
		{"a run too short", transporttest.OrderedPlan(from, 3, 40, 7), 0, 1},
		{"a run between blocks", mixed, 1, 3},
	} {
		l.Target.Fill(2)
		var batches, kernels int
		if copies != nil {
			batches, kernels = copies("cuMemcpyBatchAsync_v2"), copies("cuLaunchKernel")
		}
		l.RequirePull(puller, c.plan)
		if copies != nil && (copies("cuMemcpyBatchAsync_v2")-batches != c.batches || copies("cuLaunchKernel")-kernels != c.kernels) {
			t.Errorf("%s: %d batches and %d kernels, want %d and %d", c.name, copies("cuMemcpyBatchAsync_v2")-batches, copies("cuLaunchKernel")-kernels, c.batches, c.kernels)
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
		transporttest.RunShort(t, func(t *testing.T, source, target transport.Layout) transporttest.Pair {
			return newPair(t, g, source, target)
		})
	})
	c := newControl(t)
	l := transporttest.Start(t, newPair(t, g, eightK, eightK))
	puller, plan := l.Open(), transporttest.ShuffledPlan(l.Source.Memory, 512)
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
