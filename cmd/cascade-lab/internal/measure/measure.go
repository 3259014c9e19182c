// Package measure times the paths by which KV blocks are copied into, out of and within
// the memory of a GPU, and what a transfer costs the work beside it.
//
// NewBench opens a GPU with two pools; its methods return Rows. Owner is another process
// with a pool on the same GPU. EvaluateGoals compares rows with the goals of transport
// cuda.
//
// Invariant: each path that is timed is verified, too: into memory that was cleared,
// against checksums that a processor has computed. The figures are those of this machine
// and moment, and decide nothing in a fleet.
package measure

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// Shape is the shape of a pool, and how much of it is copied at once.
type Shape struct {
	Regions    int   `json:"regions"`     // of a block: K and V of each layer, for instance
	BlockBytes int64 `json:"block_bytes"` // of a block in one region
	Pool       int   `json:"pool"`        // blocks of the pool
	Plan       int   `json:"plan"`        // blocks that are copied, shuffled
}

// Bytes returns the number of bytes that one plan copies.
func (s Shape) Bytes() int64 { return int64(s.Plan) * int64(s.Regions) * s.BlockBytes }

// PoolBytes returns the size of a pool.
func (s Shape) PoolBytes() int64 { return int64(s.Pool) * int64(s.Regions) * s.BlockBytes }

// hostBytes bounds what is copied to and from host memory at once, in pinned memory.
const hostBytes = 256 << 20

// hostShape returns the shape with a plan that fits into pinned memory.
func (s Shape) hostShape() Shape {
	s.Plan = int(max(1, min(int64(s.Plan), hostBytes/(int64(s.Regions)*s.BlockBytes))))
	return s
}

func (s Shape) validate() error {
	const most = 1 << 40
	if s.Regions < 1 || s.BlockBytes < 16 || s.BlockBytes%16 != 0 || s.Plan < 1 || s.Pool < s.Plan || s.Regions > 4096 || s.Pool > 1<<24 ||
		s.BlockBytes > most/int64(s.Regions)/int64(s.Pool) {
		return fmt.Errorf("shape: a plan of %d blocks of a pool of %d, %d regions of %d bytes each: want 1 ≤ plan ≤ pool, and bytes a multiple of 16", s.Plan, s.Pool, s.Regions, s.BlockBytes)
	}
	return nil
}

// Config configures a Bench.
type Config struct {
	// Driver is the loaded driver, and Ordinal the number of the GPU. Required.
	Driver  *cuda.Driver
	Ordinal int
	Shape   Shape
	// Groups are the numbers of thread groups (CTAs) that kernels run with. Required.
	Groups []int
	// Repeats is how often each path is timed after a first, discarded time; the median
	// counts. 0 means 5.
	Repeats int
}

// Row is one path and its times.
type Row struct {
	Part string `json:"part"` // the part that the path belongs to
	// Path is the copy path: contiguous, a call per block, kernel, … In Decode, it is what ran
	// beside the step.
	Path string `json:"path"`
	// Of is the owner of a decode step; empty in other parts.
	Of string `json:"of,omitempty"`
	// Groups is the number of thread groups of a kernel; 0 for copy engines.
	Groups int `json:"groups,omitempty"`
	// Seconds is the median time on the GPU, Submit the host's time until everything was
	// submitted.
	Seconds float64 `json:"seconds"`
	Submit  float64 `json:"submit_seconds"`
	// Rate is bytes per second, each byte counted once; 0 if nothing is copied.
	Rate float64 `json:"bytes_per_second,omitempty"`
	// Slower is how much longer a decode step takes than alone, as a share.
	Slower *float64 `json:"slower,omitempty"`
}

// The parts.
const (
	Within   = "within the GPU"
	Across   = "from another process"
	ToHost   = "to the host"
	FromHost = "from the host"
	Checksum = "checksum"
	Decode   = "decode step"
)

// The paths of Decode: what ran beside the step.
const (
	Alone      = "alone"
	ByKernel   = "beside a transfer by the kernel"
	ByCopies   = "beside a transfer by the copy engines"
	AloneAgain = "alone again, at the end"
)

const (
	threads = 512
	piece   = 64 << 10 // bytes of a region that a group takes at a time
)

// Bench is a GPU with two pools. It is for one goroutine.
type Bench struct {
	config  Config
	context *cuda.Context
	module  *cuda.Module
	kernels map[string]cuda.Kernel
	stream  *cuda.Stream
	began   *cuda.Event
	ended   *cuda.Event
	src     cuda.Pointer
	dst     cuda.Pointer
	desc    *cuda.HostMemory // regions, pairs
	table   cuda.Pointer
	sums    *cuda.HostMemory
	batch   cuda.Batch
	pairs   [][2]uint32 // the plan: source and target
	inOrder [][2]uint32 // as many blocks, in order
	seed    uint64      // of the source's bytes; see fillPattern
}

// NewBench makes the pools and fills the source, each bench's with other bytes. It must
// be closed.
func NewBench(c Config) (r *Bench, err error) {
	if c.Driver == nil || len(c.Groups) == 0 {
		return nil, errors.New("measure: Driver and Groups are required")
	}
	if c.Repeats == 0 {
		c.Repeats = 5
	}
	if err := c.Shape.validate(); err != nil {
		return nil, fmt.Errorf("measure: %w", err)
	}
	r = &Bench{config: c, kernels: map[string]cuda.Kernel{}, seed: rand.Uint64()}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("measure: gpu %d: %w", c.Ordinal, err), r.Close())
			r = nil
		}
	}()
	if r.context, err = c.Driver.RetainContext(c.Ordinal); err != nil {
		return r, err
	}
	if r.module, err = r.context.LoadModule(transport.KernelPTX); err != nil {
		return r, err
	}
	for _, name := range []string{transport.KernelCopy, transport.KernelGather, transport.KernelScatter, transport.KernelSum, transport.KernelSumDestination} {
		if r.kernels[name], err = r.module.Kernel(name); err != nil {
			return r, err
		}
	}
	if r.stream, err = r.context.NewLowPriorityStream(); err != nil {
		return r, err
	}
	for _, e := range []**cuda.Event{&r.began, &r.ended} {
		if *e, err = r.context.NewEvent(cuda.Timed); err != nil {
			return r, err
		}
	}
	for _, p := range []*cuda.Pointer{&r.src, &r.dst} {
		if *p, err = r.context.Alloc(c.Shape.PoolBytes()); err != nil {
			return r, fmt.Errorf("two pools of %d bytes: %w", c.Shape.PoolBytes(), err)
		}
	}
	size := int64(c.Shape.Regions*transport.KernelRegionWords*8 + c.Shape.Plan*8)
	if r.desc, err = r.context.AllocHost(size); err != nil {
		return r, err
	}
	if r.table, err = r.context.Alloc(size); err != nil {
		return r, err
	}
	if r.sums, err = r.context.AllocHost(int64(c.Shape.Plan*c.Shape.Regions) * c.Shape.pieces() * 8); err != nil {
		return r, err
	}
	rng := rand.New(rand.NewPCG(1, 2))
	from, to := rng.Perm(c.Shape.Pool), rng.Perm(c.Shape.Pool)
	for i := range c.Shape.Plan {
		r.pairs = append(r.pairs, [2]uint32{uint32(from[i]), uint32(to[i])})
		r.inOrder = append(r.inOrder, [2]uint32{uint32(i), uint32(i)})
	}
	return r, r.fill()
}

// fillBytes is the number of bytes of a pool that are filled at once.
const fillBytes = 32 << 20

// fill writes the source's pattern.
func (r *Bench) fill() error {
	total := r.config.Shape.PoolBytes()
	h, err := r.context.AllocHost(min(total, fillBytes))
	if err != nil {
		return err
	}
	for at := int64(0); at < total && err == nil; at += fillBytes {
		n := min(fillBytes, total-at)
		fillPattern(h.Bytes()[:n], r.seed, at)
		err = errors.Join(r.stream.CopyToDevice(r.src+cuda.Pointer(at), h, 0, n), r.stream.Wait())
	}
	return errors.Join(err, r.stream.Wait(), h.Close()) // after an error a copy may be in progress
}

// Close releases everything.
func (r *Bench) Close() error {
	if r.context == nil {
		return nil
	}
	var errs []error
	if r.stream != nil {
		errs = append(errs, r.stream.Wait(), r.stream.Close())
	}
	for _, e := range []*cuda.Event{r.began, r.ended} {
		if e != nil {
			errs = append(errs, e.Close())
		}
	}
	for _, p := range []cuda.Pointer{r.src, r.dst, r.table} {
		if p != 0 {
			errs = append(errs, r.context.Free(p))
		}
	}
	for _, h := range []*cuda.HostMemory{r.desc, r.sums} {
		if h != nil {
			errs = append(errs, h.Close())
		}
	}
	if r.module != nil {
		errs = append(errs, r.module.Close())
	}
	errs = append(errs, r.context.Close())
	r.context = nil
	return errors.Join(errs...)
}

// pieces returns the number of pieces of a region.
func (s Shape) pieces() int64 { return (s.BlockBytes + piece - 1) / piece }

// partPointer returns the address of region g of a block in a pool.
func (s Shape) partPointer(pool cuda.Pointer, g int, block uint32) cuda.Pointer {
	return pool + cuda.Pointer((int64(g)*int64(s.Pool)+int64(block))*s.BlockBytes)
}

// side is one end of a kernel's work: a pool, or packed blocks.
type side struct {
	at     cuda.Pointer
	packed bool
}

// launch describes a plan, which has at most as many blocks as the bench's, and starts a
// kernel over it.
func (r *Bench) launch(name string, groups int, pairs [][2]uint32, src, dst side) error {
	s, w := r.config.Shape, r.desc.Uint64s()
	for g := range s.Regions {
		one := w[g*transport.KernelRegionWords:]
		for i, end := range []side{src, dst} {
			if end.packed {
				one[2*i], one[2*i+1] = uint64(end.at)+uint64(int64(g)*s.BlockBytes), uint64(int64(s.Regions)*s.BlockBytes)
			} else {
				one[2*i], one[2*i+1] = uint64(s.partPointer(end.at, g, 0)), uint64(s.BlockBytes)
			}
		}
		one[4] = uint64(s.BlockBytes)
	}
	words := s.Regions * transport.KernelRegionWords
	ids := r.desc.Uint32s()[2*words:]
	for i, p := range pairs {
		ids[2*i], ids[2*i+1] = p[0], p[1]
	}
	if err := r.stream.CopyToDevice(r.table, r.desc, 0, int64(words*8+len(pairs)*8)); err != nil {
		return err
	}
	items := int64(len(pairs)*s.Regions) * s.pieces()
	return r.kernels[name].Launch(r.stream, int(min(int64(groups), items)), threads, []uint64{
		uint64(r.table), uint64(s.Regions), uint64(r.table) + uint64(words*8), uint64(len(pairs)), piece, uint64(s.pieces()), uint64(r.sums.Pointer()),
	})
}

// timePath runs work several times and returns its row.
func (r *Bench) timePath(part, path string, groups int, bytes int64, work func() error) (Row, error) {
	var took, submit []float64
	for i := range r.config.Repeats + 1 {
		if err := r.began.Record(r.stream); err != nil {
			return Row{}, fmt.Errorf("%s, %s: %w", part, path, err)
		}
		start := time.Now()
		err := work()
		host := time.Since(start).Seconds()
		if err == nil {
			err = r.ended.Record(r.stream)
		}
		if err == nil {
			err = r.ended.Wait()
		}
		var ms float32
		if err == nil {
			ms, err = r.ended.Since(r.began)
		}
		if err != nil {
			return Row{}, fmt.Errorf("%s, %s: %w", part, path, err)
		}
		if i > 0 {
			took, submit = append(took, float64(ms)/1e3), append(submit, host)
		}
	}
	row := Row{Part: part, Path: path, Groups: groups, Seconds: Median(took), Submit: Median(submit)}
	if row.Seconds > 0 {
		row.Rate = float64(bytes) / row.Seconds
	}
	return row, nil
}

// Median returns the median of x, which it does not change; 0 for none.
func Median(x []float64) float64 {
	if len(x) == 0 {
		return 0
	}
	x = slices.Sorted(slices.Values(x))
	return (x[len(x)/2] + x[(len(x)-1)/2]) / 2
}
