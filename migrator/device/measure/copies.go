package measure

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/device/cuda/kernel"
)

// Copies times the ways within the GPU, to and from the host, and the checksum. A way
// that fails costs no other: the rows of those are returned beside its error, unless the
// GPU has failed for good.
func (r *Rig) Copies() (rows []Row, err error) {
	for _, f := range []func() ([]Row, error){r.within, r.toHost, r.fromHost, r.checksum} {
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

// run times several ways of one part; those whose work is nil are left out. See Copies.
func (r *Rig) run(part string, bytes int64, ways []way) (rows []Row, err error) {
	for _, w := range ways {
		if w.work == nil {
			continue
		}
		row, failed := r.time(part, w.name, w.groups, bytes, w.work)
		if failed == nil {
			rows = append(rows, row)
			continue
		}
		err = errors.Join(err, failed)
		if cuda.Sticky(failed) {
			break
		}
		if failed := r.stream.Wait(); failed != nil { // something may be under way
			return rows, errors.Join(err, failed)
		}
	}
	return rows, err
}

type way struct {
	name   string
	groups int
	work   func() error
}

// kernels are ways of one kernel, by the number of its groups.
func (r *Rig) byGroups(name string, work func(groups int) error) (out []way) {
	for _, g := range r.config.Groups {
		out = append(out, way{name, g, func() error { return work(g) }})
	}
	return out
}

// each calls f for all parts of a plan.
func (r *Rig) each(s Shape, f func(i, g int) error) error {
	for i := range s.Plan {
		for g := range s.Regions {
			if err := f(i, g); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *Rig) within() ([]Row, error) {
	s := r.config.Shape
	ways := []way{
		{name: "contiguous", work: func() error { return r.stream.Copy(r.dst, r.src, s.Bytes()) }},
		{name: "a call per block", work: func() error {
			return r.each(s, func(i, g int) error {
				return r.stream.Copy(s.at(r.dst, g, r.pairs[i][1]), s.at(r.src, g, r.pairs[i][0]), s.BlockBytes)
			})
		}},
		{name: "batch call"},
	}
	if r.config.Driver.Batches() {
		ways[2].work = r.batchWithin
	}
	rows, err := r.run(Within, s.Bytes(), append(ways, r.byGroups("kernel", func(groups int) error {
		return r.launch(kernel.Copy, groups, s, side{at: r.src}, side{at: r.dst})
	})...))
	if cuda.Sticky(err) {
		return rows, err
	}
	return rows, errors.Join(err, r.verify(Within, side{at: r.src}))
}

// batchWithin submits the plan to the copy engines, in one call.
func (r *Rig) batchWithin() error {
	s := r.config.Shape
	return r.stream.CopyBatch(&r.batch, s.Plan*s.Regions, func(n int) (cuda.Pointer, cuda.Pointer, int64) {
		i, g := n/s.Regions, n%s.Regions
		return s.at(r.dst, g, r.pairs[i][1]), s.at(r.src, g, r.pairs[i][0]), s.BlockBytes
	})
}

// verify copies by the kernel once more, and compares the sums of what was read with
// those of what has arrived.
func (r *Rig) verify(part string, src side) error {
	s, groups := r.config.Shape, slices.Max(r.config.Groups)
	var read []uint64
	for _, name := range []string{kernel.Copy, kernel.SumDestination} {
		if err := r.launch(name, groups, s, src, side{at: r.dst}); err != nil {
			return err
		}
		if err := r.stream.Wait(); err != nil {
			return err
		}
		if read == nil {
			read = slices.Clone(r.sums.Uint64s())
		}
	}
	if !slices.Equal(read, r.sums.Uint64s()) {
		return fmt.Errorf("%s: what arrives has not the checksums of what was read", part)
	}
	return nil
}

// pinned makes memory of the host for a shape's plan, and runs f.
func (r *Rig) pinned(f func(s Shape, h *cuda.Host) ([]Row, error)) ([]Row, error) {
	s := r.config.Shape.hosted()
	h, err := r.context.HostAlloc(s.Bytes())
	if err != nil {
		return nil, err
	}
	rows, err := f(s, h)
	return rows, errors.Join(err, r.stream.Wait(), h.Close()) // after an error there may be work under way
}

func (r *Rig) toHost() ([]Row, error) {
	return r.pinned(func(s Shape, h *cuda.Host) ([]Row, error) {
		ways := []way{
			{name: "contiguous", work: func() error { return r.stream.ToHost(h, 0, r.src, s.Bytes()) }},
			{name: "a call per block", work: func() error {
				return r.each(s, func(i, g int) error {
					return r.stream.ToHost(h, int64(i*s.Regions+g)*s.BlockBytes, s.at(r.src, g, r.pairs[i][0]), s.BlockBytes)
				})
			}},
			{name: "batch call"},
		}
		if r.config.Driver.Batches() {
			ways[2].work = func() error {
				return r.stream.CopyBatch(&r.batch, s.Plan*s.Regions, func(n int) (cuda.Pointer, cuda.Pointer, int64) {
					i, g := n/s.Regions, n%s.Regions
					return h.Pointer() + cuda.Pointer(int64(n)*s.BlockBytes), s.at(r.src, g, r.pairs[i][0]), s.BlockBytes
				})
			}
		}
		return r.run(ToHost, s.Bytes(), append(ways, r.byGroups("gather kernel", func(groups int) error {
			return r.launch(kernel.Gather, groups, s, side{at: r.src}, side{h.Pointer(), true})
		})...))
	})
}

func (r *Rig) fromHost() ([]Row, error) {
	return r.pinned(func(s Shape, h *cuda.Host) ([]Row, error) {
		ways := []way{
			{name: "contiguous", work: func() error { return r.stream.ToDevice(r.dst, h, 0, s.Bytes()) }},
			{name: "a call per block", work: func() error {
				return r.each(s, func(i, g int) error {
					return r.stream.ToDevice(s.at(r.dst, g, r.pairs[i][1]), h, int64(i*s.Regions+g)*s.BlockBytes, s.BlockBytes)
				})
			}},
			{name: "batch call"},
		}
		if r.config.Driver.Batches() {
			ways[2].work = func() error {
				return r.stream.CopyBatch(&r.batch, s.Plan*s.Regions, func(n int) (cuda.Pointer, cuda.Pointer, int64) {
					i, g := n/s.Regions, n%s.Regions
					return s.at(r.dst, g, r.pairs[i][1]), h.Pointer() + cuda.Pointer(int64(n)*s.BlockBytes), s.BlockBytes
				})
			}
		}
		return r.run(FromHost, s.Bytes(), append(ways, r.byGroups("scatter kernel", func(groups int) error {
			return r.launch(kernel.Scatter, groups, s, side{h.Pointer(), true}, side{at: r.dst})
		})...))
	})
}

func (r *Rig) checksum() ([]Row, error) {
	s := r.config.Shape
	return r.run(Checksum, s.Bytes(), r.byGroups("kernel", func(groups int) error {
		return r.launch(kernel.Sum, groups, s, side{at: r.src}, side{})
	}))
}
