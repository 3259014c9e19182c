package measure

import (
	"errors"
	"fmt"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/internal/kernel"
)

// Copies times and verifies the ways within the GPU, to and from the host, and the
// checksum. A way that fails, or moves other bytes than it should, costs no other: the rows
// of those are returned beside its error, unless the GPU has failed for good.
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

// way is one way of a part.
type way struct {
	name   string
	groups int
	work   func() error // nil: there is no such way here
	to     *arrival     // where it moves blocks to; nil for what moves nothing
	want   []uint64     // the sums of what it moves, by entry and region
	tells  bool         // whether it is a kernel, which tells these sums as well
}

// run times and verifies several ways of one part. See Copies.
func (r *Rig) run(part string, bytes int64, ways []way) (rows []Row, err error) {
	for _, w := range ways {
		if w.work == nil {
			continue
		}
		row, failed := r.time(part, w.name, w.groups, bytes, w.work)
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
		if failed := r.stream.Wait(); failed != nil { // something may be under way
			return rows, errors.Join(err, failed)
		}
	}
	return rows, err
}

// label is a way's name, with its groups.
func (w way) label() string {
	if w.groups == 0 {
		return w.name
	}
	return fmt.Sprintf("%s, %d groups", w.name, w.groups)
}

// byGroups are ways of one kernel, by the number of its groups.
func (r *Rig) byGroups(w way, work func(groups int) error) (out []way) {
	for _, g := range r.config.Groups {
		w.groups, w.work = g, func() error { return work(g) }
		out = append(out, w)
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

// submit is the batch call over all parts of a plan; nil where the driver has none.
func (r *Rig) submit(s Shape, part func(i, g int) (dst, src cuda.Pointer)) func() error {
	if !r.config.Driver.Batches() {
		return nil
	}
	return func() error {
		return r.stream.CopyBatch(&r.batch, s.Plan*s.Regions, func(n int) (cuda.Pointer, cuda.Pointer, int64) {
			dst, src := part(n/s.Regions, n%s.Regions)
			return dst, src, s.BlockBytes
		})
	}
}

// batchWithin moves the plan within the GPU by the batch call.
func (r *Rig) batchWithin() func() error {
	s := r.config.Shape
	return r.submit(s, func(i, g int) (cuda.Pointer, cuda.Pointer) {
		return s.at(r.dst, g, r.pairs[i][1]), s.at(r.src, g, r.pairs[i][0])
	})
}

func (r *Rig) within() ([]Row, error) {
	s := r.config.Shape
	inRow, byPlan := r.inPool(r.row, side{r.dst, true}), r.inPool(r.pairs, side{at: r.dst})
	want := s.sums(r.seed, r.planned)
	ways := []way{
		{name: contiguous, to: inRow, want: s.sums(r.seed, s.packed), work: func() error { return r.stream.Copy(r.dst, r.src, s.Bytes()) }},
		{name: "a call per block", to: byPlan, want: want, work: func() error {
			return r.each(s, func(i, g int) error {
				return r.stream.Copy(s.at(r.dst, g, r.pairs[i][1]), s.at(r.src, g, r.pairs[i][0]), s.BlockBytes)
			})
		}},
		{name: "batch call", to: byPlan, want: want, work: r.batchWithin()},
	}
	return r.run(Within, s.Bytes(), append(ways, r.byGroups(way{name: byKernel, to: byPlan, want: want, tells: true}, func(groups int) error {
		return r.launch(kernel.Copy, groups, r.pairs, side{at: r.src}, side{at: r.dst})
	})...))
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
		to, want := r.inHost(h), s.sums(r.seed, r.planned)
		ways := []way{
			{name: contiguous, to: to, want: s.sums(r.seed, s.packed), work: func() error { return r.stream.ToHost(h, 0, r.src, s.Bytes()) }},
			{name: "a call per block", to: to, want: want, work: func() error {
				return r.each(s, func(i, g int) error {
					return r.stream.ToHost(h, s.packed(i, g), s.at(r.src, g, r.pairs[i][0]), s.BlockBytes)
				})
			}},
			{name: "batch call", to: to, want: want, work: r.submit(s, func(i, g int) (cuda.Pointer, cuda.Pointer) {
				return h.Pointer() + cuda.Pointer(s.packed(i, g)), s.at(r.src, g, r.pairs[i][0])
			})},
		}
		return r.run(ToHost, s.Bytes(), append(ways, r.byGroups(way{name: "gather kernel", to: to, want: want, tells: true}, func(groups int) error {
			return r.launch(kernel.Gather, groups, r.pairs[:s.Plan], side{at: r.src}, side{h.Pointer(), true})
		})...))
	})
}

func (r *Rig) fromHost() ([]Row, error) {
	return r.pinned(func(s Shape, h *cuda.Host) ([]Row, error) {
		seed := r.seed + 1<<40 // no word of the pool's
		pattern(h.Bytes(), seed, 0)
		inRow, byPlan, want := r.inPool(r.row[:s.Plan], side{r.dst, true}), r.inPool(r.pairs[:s.Plan], side{at: r.dst}), s.sums(seed, s.packed)
		ways := []way{
			{name: contiguous, to: inRow, want: want, work: func() error { return r.stream.ToDevice(r.dst, h, 0, s.Bytes()) }},
			{name: "a call per block", to: byPlan, want: want, work: func() error {
				return r.each(s, func(i, g int) error {
					return r.stream.ToDevice(s.at(r.dst, g, r.pairs[i][1]), h, s.packed(i, g), s.BlockBytes)
				})
			}},
			{name: "batch call", to: byPlan, want: want, work: r.submit(s, func(i, g int) (cuda.Pointer, cuda.Pointer) {
				return s.at(r.dst, g, r.pairs[i][1]), h.Pointer() + cuda.Pointer(s.packed(i, g))
			})},
		}
		return r.run(FromHost, s.Bytes(), append(ways, r.byGroups(way{name: "scatter kernel", to: byPlan, want: want, tells: true}, func(groups int) error {
			return r.launch(kernel.Scatter, groups, r.pairs[:s.Plan], side{h.Pointer(), true}, side{at: r.dst})
		})...))
	})
}

func (r *Rig) checksum() ([]Row, error) {
	s := r.config.Shape
	return r.run(Checksum, s.Bytes(), r.byGroups(way{name: "kernel", want: s.sums(r.seed, r.planned), tells: true}, func(groups int) error {
		return r.launch(kernel.Sum, groups, r.pairs, side{at: r.src}, side{})
	}))
}
