package cuda

import (
	"errors"
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

const (
	threads   = 512       // of a thread group (CTA)
	piece     = 64 << 10  // that a group copies at a time, at least
	maxPieces = 64        // of a region: larger regions have larger pieces
	maxItems  = 1 << 20   // pieces of one launch
	maxLaunch = 1 << 30   // bytes of one launch, which cannot be cancelled
	longRun   = 256 << 10 // bytes of a run from which on the copy engines copy it
	maxCopies = 64        // by copy engines in one launch; 16 without the batch call
	maxBatch  = 4096      // pieces of one batch call, if the copy engines copy everything

	pollInterval  = 20 * time.Microsecond // between two queries whether the GPU is done
	launchTimeout = 10 * time.Second      // that the GPU may take for one launch
)

// copyStream is a CUDA stream with the buffers that describe its work. It is for one user
// at a time, which waits until its work is done.
type copyStream struct {
	context           *gpuContext
	stream            *cuda.Stream
	done              *cuda.Event
	description       *cuda.HostMemory // regions, then pairs of block numbers
	deviceDescription cuda.Pointer
	sums              *cuda.HostMemory // sums
	packed            *cuda.HostMemory // packed blocks; nil until the first use
	batch             cuda.Batch
	args              [transport.KernelArguments]uint64
	runs              []copyRun
}

// copyRun is entries of a launch whose blocks are consecutive at both ends.
type copyRun struct{ first, n int }

func newCopyStream(h *gpuContext) (*copyStream, error) {
	l := &copyStream{context: h}
	var err error
	if l.stream, err = h.context.NewLowPriorityStream(); err == nil {
		l.done, err = h.context.NewEvent(cuda.Untimed)
	}
	if err == nil {
		err = l.reserve(1<<14, 1<<14)
	}
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

// reserve makes room for so many bytes of description and of sums. The stream must be
// idle.
func (l *copyStream) reserve(in, out int64) error {
	c := l.context.context
	if l.description == nil || int64(len(l.description.Bytes())) < in {
		if l.description != nil {
			if err := errors.Join(l.description.Close(), c.Free(l.deviceDescription)); err != nil {
				return err
			}
			l.description, l.deviceDescription = nil, 0
		}
		host, err := c.AllocHost(in * 2)
		if err != nil {
			return err
		}
		table, err := c.Alloc(in * 2)
		if err != nil {
			return errors.Join(err, host.Close())
		}
		l.description, l.deviceDescription = host, table
	}
	if l.sums == nil || int64(len(l.sums.Bytes())) < out {
		if l.sums != nil {
			if err := l.sums.Close(); err != nil {
				return err
			}
			l.sums = nil
		}
		host, err := c.AllocHost(out * 2)
		if err != nil {
			return err
		}
		l.sums = host
	}
	return nil
}

// close releases the stream and its buffers. Its work is done, or its context is being
// closed.
func (l *copyStream) close() error {
	var errs error
	if l.done != nil {
		errs = errors.Join(errs, l.done.Close())
	}
	if l.stream != nil {
		errs = errors.Join(errs, l.stream.Close())
	}
	if l.description != nil {
		errs = errors.Join(errs, l.description.Close(), l.context.context.Free(l.deviceDescription))
	}
	if l.sums != nil {
		errs = errors.Join(errs, l.sums.Close())
	}
	if l.packed != nil {
		errs = errors.Join(errs, l.packed.Close())
	}
	return errs
}

// tiling is how the regions of a layout are cut into pieces: bytes of a piece, and pieces
// of the largest region.
type tiling struct{ piece, pieces int64 }

func tilingFor(l transport.Layout) tiling {
	most := int64(0)
	for _, r := range l.Regions {
		most = max(most, r.Bytes)
	}
	c := tiling{piece: max(piece, (most/maxPieces+16)/16*16)}
	c.pieces = (most + c.piece - 1) / c.piece
	return c
}

// maxBlocks returns how many blocks of a layout one launch may copy.
func (c tiling) maxBlocks(l transport.Layout) int {
	return int(max(1, min(maxItems/(int64(len(l.Regions))*c.pieces), maxLaunch/l.BlockBytes())))
}

// describe describes both ends of a launch of n entries. The caller fills in the pairs of
// block numbers that it returns.
func (l *copyStream) describe(c tiling, src, dst cuda.Pointer, from, to transport.Layout, n int) ([]uint32, error) {
	regions := len(from.Regions)
	words := regions * transport.KernelRegionWords
	if err := l.reserve(int64(words*8+n*8), int64(n*regions)*c.pieces*8); err != nil {
		return nil, err
	}
	w := l.description.Uint64s()
	for r, g := range from.Regions {
		d := to.Regions[r]
		one := w[r*transport.KernelRegionWords:]
		one[0], one[1] = uint64(src)+uint64(g.Offset), uint64(g.Stride)
		one[2], one[3] = uint64(dst)+uint64(d.Offset), uint64(d.Stride)
		one[4] = uint64(g.Bytes)
	}
	return l.description.Uint32s()[2*words:][:2*n], nil
}

// uploadDescription copies the description to the GPU.
func (l *copyStream) uploadDescription(regions, n int) error {
	return l.stream.CopyToDevice(l.deviceDescription, l.description, 0, int64(regions*transport.KernelRegionWords*8+n*8))
}

// launchKernel launches a kernel over entries [first, first+n) of the description.
func (l *copyStream) launchKernel(k cuda.Kernel, groups int, c tiling, regions, first, n int) error {
	items := int64(n*regions) * c.pieces
	l.args = [...]uint64{
		uint64(l.deviceDescription), uint64(regions),
		uint64(l.deviceDescription) + uint64(regions*transport.KernelRegionWords*8+first*8), uint64(n),
		uint64(c.piece), uint64(c.pieces),
		uint64(l.sums.Pointer()) + uint64(int64(first*regions)*c.pieces*8),
	}
	return k.Launch(l.stream, int(min(int64(groups), items)), threads, l.args[:])
}

// waitDone returns when the GPU has done the submitted work, which cannot be cancelled.
// It fails if that takes longer than launchTimeout.
func (l *copyStream) waitDone() error {
	if err := l.done.Record(l.stream); err != nil {
		return l.drainAfter(err)
	}
	for start := time.Now(); ; time.Sleep(pollInterval) {
		done, err := l.done.Done()
		if err != nil {
			return l.drainAfter(err)
		}
		if done {
			l.context.worked.Store(true)
			return nil
		}
		if time.Since(start) > launchTimeout {
			return &cuda.Error{Call: "cuEventQuery", Code: codeLaunchTimeout, Name: fmt.Sprintf("the launch was not done after %v", launchTimeout)}
		}
	}
}

// codeLaunchTimeout is the code of a GPU that exceeded launchTimeout. It is sticky.
const codeLaunchTimeout = 702

// drainAfter waits for the stream after an error of a call, since work may be in
// progress, and returns the error.
func (l *copyStream) drainAfter(err error) error {
	if cuda.Sticky(err) {
		return err // only the end of the context stops the work
	}
	return errors.Join(err, l.stream.Wait())
}

// regionChecksum returns the checksum of region r, of so many bytes, of entry e.
func (l *copyStream) regionChecksum(c tiling, regions, e, r int, bytes int64) uint32 {
	sum := uint64(0)
	for _, s := range l.sums.Uint64s()[int64(e*regions+r)*c.pieces:][:c.pieces] {
		sum += s
	}
	return transport.FoldSum(sum, bytes)
}

// checksumBlocks computes the checksums of blocks of a pool and passes them to emit in
// order.
func (l *copyStream) checksumBlocks(groups int, pool cuda.Pointer, layout transport.Layout, blocks []uint32, emit func(i, r int, sum uint32)) error {
	c, regions := tilingFor(layout), len(layout.Regions)
	most := c.maxBlocks(layout)
	for at := 0; at < len(blocks); at += most {
		part := blocks[at:min(at+most, len(blocks))]
		pairs, err := l.describe(c, pool, 0, layout, layout, len(part))
		if err != nil {
			return err
		}
		for i, b := range part {
			pairs[2*i], pairs[2*i+1] = b, 0
		}
		if err := l.uploadDescription(regions, len(part)); err != nil {
			return l.drainAfter(err)
		}
		if err := l.launchKernel(l.context.sum, groups, c, regions, 0, len(part)); err != nil {
			return l.drainAfter(err)
		}
		if err := l.waitDone(); err != nil {
			return err
		}
		for i := range part {
			for r, g := range layout.Regions {
				emit(at+i, r, l.regionChecksum(c, regions, i, r, g.Bytes))
			}
		}
	}
	return nil
}

// poolEnd is one end of a copy: a pool in the stream's context.
type poolEnd struct {
	pool   cuda.Pointer
	layout transport.Layout
}

// copyBlocks copies the blocks of a plan, and appends to bad the entries without their
// checksums. It calls checkpoint before each launch, and ends with its error. When it
// returns no work is in progress, except in a context that is being closed.
func (l *copyStream) copyBlocks(groups int, from, to poolEnd, p transport.Plan, bad []int, checkpoint func() error) ([]int, error) {
	c, regions := tilingFor(to.layout), len(to.layout.Regions)
	most := c.maxBlocks(to.layout)
	if l.context.copyEngines { // each copy is described by itself, so checkpoint must be called more often
		most = max(1, min(most, maxBatch/regions))
	}
	for at := 0; at < len(p.Src); at += most {
		if err := checkpoint(); err != nil {
			return bad, err
		}
		n := min(most, len(p.Src)-at)
		if err := l.submitCopies(groups, c, from, to, p.Src[at:at+n], p.Dst[at:at+n]); err != nil {
			return bad, l.drainAfter(err)
		}
		if err := l.waitDone(); err != nil {
			return bad, err
		}
		bad = l.appendCorrupt(c, to.layout, p.Sums[at*regions:(at+n)*regions], at, bad)
	}
	return bad, nil
}

// submitCopies submits the copies of one launch: everything between two waits.
func (l *copyStream) submitCopies(groups int, c tiling, from, to poolEnd, src, dst []uint32) error {
	regions, n := len(to.layout.Regions), len(src)
	pairs, err := l.describe(c, from.pool, to.pool, from.layout, to.layout, n)
	if err != nil {
		return err
	}
	for i, s := range src {
		pairs[2*i], pairs[2*i+1] = s, dst[i]
	}
	if err := l.uploadDescription(regions, n); err != nil {
		return err
	}
	l.findRuns(from.layout, to.layout, src, dst)
	// The kernel copies what is between the runs. The copy engines copy the runs, which
	// are summed at their destination.
	next := 0
	for _, run := range l.runs {
		if run.first > next {
			if err := l.launchKernel(l.context.copy, groups, c, regions, next, run.first-next); err != nil {
				return err
			}
		}
		next = run.first + run.n
	}
	if next < n {
		if err := l.launchKernel(l.context.copy, groups, c, regions, next, n-next); err != nil {
			return err
		}
	}
	if len(l.runs) == 0 {
		return nil
	}
	piece := func(i int) (cuda.Pointer, cuda.Pointer, int64) {
		run, r := l.runs[i/regions], i%regions
		f, t := from.layout.Regions[r], to.layout.Regions[r]
		return to.pool + cuda.Pointer(t.Offset+int64(dst[run.first])*t.Stride),
			from.pool + cuda.Pointer(f.Offset+int64(src[run.first])*f.Stride), int64(run.n-1)*t.Stride + t.Bytes
	}
	pieces := len(l.runs) * regions
	for at := 0; l.context.batches.Load() && at < pieces && err == nil; at += maxBatch {
		err = l.stream.CopyBatch(&l.batch, min(maxBatch, pieces-at), func(i int) (cuda.Pointer, cuda.Pointer, int64) { return piece(at + i) })
		if cuda.HasCode(err, cuda.NotSupported) || cuda.HasCode(err, cuda.InvalidValue) {
			l.context.batches.Store(false) // the driver has a call of that name with another meaning
			err = nil
		}
	}
	if !l.context.batches.Load() {
		for i := 0; i < pieces && err == nil; i++ {
			d, s, size := piece(i)
			err = l.stream.Copy(d, s, size)
		}
	}
	if l.context.copyEngines && err == nil {
		return l.launchKernel(l.context.sumDestination, groups, c, regions, 0, n)
	}
	for i := 0; i < len(l.runs) && err == nil; i++ {
		err = l.launchKernel(l.context.sumDestination, groups, c, regions, l.runs[i].first, l.runs[i].n)
	}
	return err
}

// maxRuns is the number of runs of a launch that the copy engines copy: each costs one or
// two launches besides its copies.
const maxRuns = 4

// findRuns finds the runs that are worth a copy of their own; with copyEngines, all runs.
func (l *copyStream) findRuns(from, to transport.Layout, src, dst []uint32) {
	l.runs = l.runs[:0]
	copies := maxCopies
	if !l.context.batches.Load() {
		copies = maxCopies / 4
	}
	least, dense := int64(1)<<62, true
	for r, g := range to.Regions {
		least = min(least, g.Bytes)
		dense = dense && g.Stride == g.Bytes && from.Regions[r].Stride == g.Bytes
	}
	for i := 0; i < len(src); {
		n := 1
		for dense && i+n < len(src) && src[i+n] == src[i]+uint32(n) && dst[i+n] == dst[i]+uint32(n) {
			n++
		}
		if l.context.copyEngines {
			l.runs = append(l.runs, copyRun{i, n})
		} else if int64(n)*least >= longRun {
			if len(l.runs) == maxRuns || (len(l.runs)+1)*len(to.Regions) > copies {
				l.runs = l.runs[:0] // too many: the kernel copies all of them
				return
			}
			l.runs = append(l.runs, copyRun{i, n})
		}
		i += n
	}
}

// appendCorrupt appends the entries whose blocks do not have their checksums.
func (l *copyStream) appendCorrupt(c tiling, layout transport.Layout, want []uint32, at int, bad []int) []int {
	regions := len(layout.Regions)
	sums := l.sums.Uint64s()
	for i := range len(want) / regions {
		differ := uint32(0)
		if c.pieces == 1 { // a loop over tens of thousands of sums, without a branch for each
			want := want[i*regions:][:regions]
			sums := sums[i*regions:][:regions]
			for r := range layout.Regions {
				differ |= transport.FoldSum(sums[r], layout.Regions[r].Bytes) ^ want[r]
			}
		} else {
			for r, g := range layout.Regions {
				differ |= l.regionChecksum(c, regions, i, r, g.Bytes) ^ want[i*regions+r]
			}
		}
		if differ != 0 {
			bad = append(bad, at+i)
		}
	}
	return bad
}
