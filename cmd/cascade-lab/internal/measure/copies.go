package measure

import (
	"errors"
	"fmt"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// MeasureCopies times and verifies the paths within the GPU, to and from host memory, and
// the checksum. A path that fails, or copies wrong bytes, affects no other: the rows of
// the others are returned with its error, unless the GPU has failed for good.
func (r *Bench) MeasureCopies() (rows []Row, err error) {
	for _, f := range []func() ([]Row, error){r.measureWithin, r.measureToHost, r.measureFromHost, r.measureChecksum} {
		part, failed := f()
		rows = append(rows, part...)
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("measure: %w", failed))
		}
		if cuda.Sticky(failed) {
			break
		}
	}
	return rows, err
}

// copyPath is one path of a part.
type copyPath struct {
	name        string
	groups      int
	work        func() error // nil if the path does not exist here
	to          *destination // where it copies blocks to; nil if it copies nothing
	want        []uint64     // the expected sums of the parts, by entry and region
	reportsSums bool         // whether it is a kernel, which reports these sums as well
}

// measurePaths times and verifies several paths of one part. See MeasureCopies.
func (r *Bench) measurePaths(part string, bytes int64, paths []copyPath) (rows []Row, err error) {
	for _, w := range paths {
		if w.work == nil {
			continue
		}
		row, failed := r.timePath(part, w.name, w.groups, bytes, w.work)
		if failed == nil {
			if failed = r.verify(w); failed == nil {
				rows = append(rows, row)
				continue
			}
			failed = fmt.Errorf("%s, %s: %w", part, w.label(), failed)
		}
		err = errors.Join(err, failed)
		if cuda.Sticky(failed) {
			break
		}
		if failed := r.stream.Wait(); failed != nil { // work may be in progress
			return rows, errors.Join(err, failed)
		}
	}
	return rows, err
}

// label returns the path's name, with its groups.
func (w copyPath) label() string {
	if w.groups == 0 {
		return w.name
	}
	return fmt.Sprintf("%s, %d groups", w.name, w.groups)
}

// pathsByGroups returns the paths of one kernel, by the number of its groups.
func (r *Bench) pathsByGroups(w copyPath, work func(groups int) error) (out []copyPath) {
	for _, g := range r.config.Groups {
		w.groups, w.work = g, func() error { return work(g) }
		out = append(out, w)
	}
	return out
}

// forEachPart calls f for all parts of a plan.
func (r *Bench) forEachPart(s Shape, f func(i, g int) error) error {
	for i := range s.Plan {
		for g := range s.Regions {
			if err := f(i, g); err != nil {
				return err
			}
		}
	}
	return nil
}

// batchCopy returns the batch call over all parts of a plan; nil if the driver has none.
func (r *Bench) batchCopy(s Shape, part func(i, g int) (dst, src cuda.Pointer)) func() error {
	if !r.config.Driver.SupportsBatches() {
		return nil
	}
	return func() error {
		return r.stream.CopyBatch(&r.batch, s.Plan*s.Regions, func(n int) (cuda.Pointer, cuda.Pointer, int64) {
			dst, src := part(n/s.Regions, n%s.Regions)
			return dst, src, s.BlockBytes
		})
	}
}

// batchWithin returns the batch call that copies the plan within the GPU.
func (r *Bench) batchWithin() func() error {
	s := r.config.Shape
	return r.batchCopy(s, func(i, g int) (cuda.Pointer, cuda.Pointer) {
		return s.partPointer(r.dst, g, r.pairs[i][1]), s.partPointer(r.src, g, r.pairs[i][0])
	})
}

func (r *Bench) measureWithin() ([]Row, error) {
	s := r.config.Shape
	inRow, byPlan := r.poolDestination(r.inOrder, side{r.dst, true}), r.poolDestination(r.pairs, side{at: r.dst})
	want := s.expectedSums(r.seed, r.sourceOffset)
	paths := []copyPath{
		{name: contiguous, to: inRow, want: s.expectedSums(r.seed, s.packedOffset), work: func() error { return r.stream.Copy(r.dst, r.src, s.Bytes()) }},
		{name: "a call per block", to: byPlan, want: want, work: func() error {
			return r.forEachPart(s, func(i, g int) error {
				return r.stream.Copy(s.partPointer(r.dst, g, r.pairs[i][1]), s.partPointer(r.src, g, r.pairs[i][0]), s.BlockBytes)
			})
		}},
		{name: "batch call", to: byPlan, want: want, work: r.batchWithin()},
	}
	return r.measurePaths(Within, s.Bytes(), append(paths, r.pathsByGroups(copyPath{name: byKernel, to: byPlan, want: want, reportsSums: true}, func(groups int) error {
		return r.launch(transport.KernelCopy, groups, r.pairs, side{at: r.src}, side{at: r.dst})
	})...))
}

// withPinned runs f with pinned memory for a shape's plan.
func (r *Bench) withPinned(f func(s Shape, h *cuda.HostMemory) ([]Row, error)) ([]Row, error) {
	s := r.config.Shape.hostShape()
	h, err := r.context.AllocHost(s.Bytes())
	if err != nil {
		return nil, err
	}
	rows, err := f(s, h)
	return rows, errors.Join(err, r.stream.Wait(), h.Close()) // after an error work may be in progress
}

func (r *Bench) measureToHost() ([]Row, error) {
	return r.withPinned(func(s Shape, h *cuda.HostMemory) ([]Row, error) {
		to, want := r.hostDestination(h), s.expectedSums(r.seed, r.sourceOffset)
		paths := []copyPath{
			{name: contiguous, to: to, want: s.expectedSums(r.seed, s.packedOffset), work: func() error { return r.stream.CopyToHost(h, 0, r.src, s.Bytes()) }},
			{name: "a call per block", to: to, want: want, work: func() error {
				return r.forEachPart(s, func(i, g int) error {
					return r.stream.CopyToHost(h, s.packedOffset(i, g), s.partPointer(r.src, g, r.pairs[i][0]), s.BlockBytes)
				})
			}},
			{name: "batch call", to: to, want: want, work: r.batchCopy(s, func(i, g int) (cuda.Pointer, cuda.Pointer) {
				return h.Pointer() + cuda.Pointer(s.packedOffset(i, g)), s.partPointer(r.src, g, r.pairs[i][0])
			})},
		}
		return r.measurePaths(ToHost, s.Bytes(), append(paths, r.pathsByGroups(copyPath{name: "gather kernel", to: to, want: want, reportsSums: true}, func(groups int) error {
			return r.launch(transport.KernelGather, groups, r.pairs[:s.Plan], side{at: r.src}, side{h.Pointer(), true})
		})...))
	})
}

func (r *Bench) measureFromHost() ([]Row, error) {
	return r.withPinned(func(s Shape, h *cuda.HostMemory) ([]Row, error) {
		seed := r.seed + 1<<40 // differs from all words of the pool
		fillPattern(h.Bytes(), seed, 0)
		inRow, byPlan, want := r.poolDestination(r.inOrder[:s.Plan], side{r.dst, true}), r.poolDestination(r.pairs[:s.Plan], side{at: r.dst}), s.expectedSums(seed, s.packedOffset)
		paths := []copyPath{
			{name: contiguous, to: inRow, want: want, work: func() error { return r.stream.CopyToDevice(r.dst, h, 0, s.Bytes()) }},
			{name: "a call per block", to: byPlan, want: want, work: func() error {
				return r.forEachPart(s, func(i, g int) error {
					return r.stream.CopyToDevice(s.partPointer(r.dst, g, r.pairs[i][1]), h, s.packedOffset(i, g), s.BlockBytes)
				})
			}},
			{name: "batch call", to: byPlan, want: want, work: r.batchCopy(s, func(i, g int) (cuda.Pointer, cuda.Pointer) {
				return s.partPointer(r.dst, g, r.pairs[i][1]), h.Pointer() + cuda.Pointer(s.packedOffset(i, g))
			})},
		}
		return r.measurePaths(FromHost, s.Bytes(), append(paths, r.pathsByGroups(copyPath{name: "scatter kernel", to: byPlan, want: want, reportsSums: true}, func(groups int) error {
			return r.launch(transport.KernelScatter, groups, r.pairs[:s.Plan], side{h.Pointer(), true}, side{at: r.dst})
		})...))
	})
}

func (r *Bench) measureChecksum() ([]Row, error) {
	s := r.config.Shape
	return r.measurePaths(Checksum, s.Bytes(), r.pathsByGroups(copyPath{name: "kernel", want: s.expectedSums(r.seed, r.sourceOffset), reportsSums: true}, func(groups int) error {
		return r.launch(transport.KernelSum, groups, r.pairs, side{at: r.src}, side{})
	}))
}
