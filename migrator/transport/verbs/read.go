package verbs

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// blockRun is n blocks of a plan, from one entry on, that are consecutive in both pools.
type blockRun struct {
	entry, n int
	src, dst int64
}

// findRuns appends the runs of a plan, in its order.
func findRuns(to []blockRun, p transport.Plan) []blockRun {
	for i := range p.Src {
		src, dst := int64(p.Src[i]), int64(p.Dst[i])
		if last := len(to) - 1; last >= 0 && to[last].src+int64(to[last].n) == src && to[last].dst+int64(to[last].n) == dst {
			to[last].n++
			continue
		}
		to = append(to, blockRun{i, 1, src, dst})
	}
	return to
}

// cursor walks the bytes of a plan, region by region, in the plan's order. Without gaps
// between blocks it advances by runs, so that a run costs as much as one block.
type cursor struct {
	source, target transport.Layout
	plan           []blockRun
	entries        int // of the plan

	region, run int
	block       int   // of the stretch
	at          int64 // of the block: its first byte that was not returned yet
}

// pieceSource yields the pieces of memory to be read, one after the other.
type pieceSource interface {
	// next returns the next bytes that are contiguous at both ends, at most so many:
	// their offsets in what each end has registered, and their number.
	next(most int64) (from, to, n int64)
	// over reports whether nothing is left.
	over() bool
}

func (c *cursor) over() bool { return len(c.plan) == 0 || c.region == len(c.target.Regions) }

// part returns the first part with bytes that were not returned yet: part k is region
// k/entries of entry k%entries.
func (c *cursor) part() int {
	if c.over() {
		return c.entries * len(c.target.Regions)
	}
	return c.region*c.entries + c.plan[c.run].entry + c.block
}

func (c *cursor) next(most int64) (from, to, n int64) {
	if c.over() || most <= 0 {
		return 0, 0, 0
	}
	s, d, run := c.source.Regions[c.region], c.target.Regions[c.region], c.plan[c.run]
	from = s.Offset + (run.src+int64(c.block))*s.Stride + c.at
	to = d.Offset + (run.dst+int64(c.block))*d.Stride + c.at
	n = d.Bytes - c.at
	if s.Stride == s.Bytes && d.Stride == d.Bytes {
		n += int64(run.n-c.block-1) * d.Bytes
	}
	n = min(n, most)
	if c.at += n; c.at >= d.Bytes {
		c.block, c.at = c.block+int(c.at/d.Bytes), c.at%d.Bytes
	}
	if c.block == run.n {
		c.block, c.run = 0, c.run+1
	}
	if c.run == len(c.plan) {
		c.run, c.region = 0, c.region+1
	}
	return from, to, n
}

// fillBatch fills the work requests of one batch, and returns their number. What is
// contiguous at the source is one READ, wherever its pieces go. The last READ is
// signaled: its completion means that all have ended.
func (p *puller) fillBatch(c pieceSource) (n int) {
	first, pieces := 0, 0             // of the last READ: its index and its pieces
	end, length := int64(0), int64(0) // where it ends at the source, and its bytes
	longest := min(int64(readBytes), int64(p.state.port.Message))
	for bytes := int64(0); n < len(p.work) && bytes < batchBytes; n++ {
		most := longest
		joins := pieces > 0 && pieces < p.pieces && length < longest
		if joins {
			most -= length
		}
		from, to, run := c.next(most)
		if run == 0 {
			break
		}
		w := &p.work[n]
		*w = verbs.Work{
			Local: p.region.Base + uint64(to), LocalKey: p.region.LocalKey, Remote: p.remoteMem.base + uint64(from), RemoteKey: p.remoteMem.key, Length: uint32(run),
		}
		if joins && from == end {
			w.Flags = verbs.Joined
			pieces, length = pieces+1, length+run
		} else {
			first, pieces, length = n, 1, run
		}
		end, bytes = from+run, bytes+run
	}
	if n > 0 {
		p.work[first].Flags = verbs.Signaled
		p.work[first].ID = p.posted
	}
	return n
}

// newCursor returns a cursor at the beginning of a plan. It is valid until the next call.
func (p *puller) newCursor(plan transport.Plan) *cursor {
	p.runs = findRuns(p.runs[:0], plan)
	p.cursor = cursor{source: p.remote, target: p.memory.Layout, plan: p.runs, entries: len(plan.Src)}
	return &p.cursor
}

// copyBlocks pulls the blocks of a plan. After an error the connection is fenced.
func (p *puller) copyBlocks(ctx context.Context, plan transport.Plan, bad []int) ([]int, error) {
	p.bad = bad
	if err := p.readBlocks(ctx, plan); err != nil {
		return p.bad, errors.Join(err, p.fence())
	}
	return p.bad, nil
}

// readBlocks reads and verifies the blocks of a plan.
func (p *puller) readBlocks(ctx context.Context, plan transport.Plan) (err error) {
	defer context.AfterFunc(ctx, func() { p.queue.SetDeadline(time.Unix(1, 0)) })()
	p.queue.SetDeadline(p.deadline)
	p.posted, p.ended = 0, 0
	if p.usesBuffers() {
		err = p.readByBuffers(ctx, plan)
	} else {
		err = p.readDirect(ctx, plan)
	}
	if err != nil {
		return err
	}
	if p.memory.Device != nil {
		if p.bad, err = appendCorruptDevice(p.memory, p.remote.Checksum, plan, p.bad); err != nil {
			return err
		}
	}
	if len(p.bad) > 0 {
		slices.Sort(p.bad)
		p.bad = slices.Compact(p.bad)
	}
	return p.endReason(ctx)
}

// readDirect reads a plan in batches, several of them in flight, and verifies each while
// the next ones arrive.
func (p *puller) readDirect(ctx context.Context, plan transport.Plan) error {
	c := p.newCursor(plan)
	verified := 0 // parts
	for {
		for p.posted < p.ended+depth && !c.over() {
			if err := p.postBatch(ctx, c); err != nil {
				return err
			}
			p.marks[(p.posted-1)%depth] = c.part()
		}
		if p.posted == p.ended {
			return nil
		}
		if err := p.waitBatches(ctx); err != nil {
			return err
		}
		whole := p.marks[(p.ended-1)%depth]
		if p.memory.Device == nil {
			if err := transport.CatchFault(func() error {
				p.bad = appendCorrupt(p.memory, p.remote.Checksum, plan, verified, whole, p.bad)
				return nil
			}); err != nil {
				return err
			}
		}
		verified = whole
	}
}

// postBatch posts the next batch.
func (p *puller) postBatch(ctx context.Context, c pieceSource) error {
	if err := p.endReason(ctx); err != nil {
		return err
	}
	n := p.fillBatch(c)
	p.posted++
	if _, err := p.pair.Post(p.work[:n]); err != nil {
		return p.causeOf(ctx, err)
	}
	return nil
}

// waitBatches waits for batches to complete.
func (p *puller) waitBatches(ctx context.Context) error {
	n, err := p.waitCompletions(ctx)
	if err != nil {
		return err
	}
	return p.countBatches(ctx, n)
}

// countBatches counts n completed batches.
func (p *puller) countBatches(ctx context.Context, n int) error {
	for _, w := range p.done[:n] {
		if err := p.queue.CompletionErr(w); err != nil {
			return p.causeOf(ctx, err)
		}
		if w.ID != p.ended {
			return errors.New("the batches completed out of order")
		}
		p.ended++
	}
	return nil
}

// waitCompletions waits for completions.
func (p *puller) waitCompletions(ctx context.Context) (int, error) {
	for {
		n, err := p.queue.Wait(p.done)
		if err == nil {
			return n, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, err
		}
		// The deadline was that of an earlier pull, unless endReason has a reason: a
		// reason is always set before the deadline.
		p.queue.SetDeadline(p.deadline)
		if err := p.endReason(ctx); err != nil {
			return 0, err
		}
	}
}

// endReason returns why a pull must end, or nil.
func (p *puller) endReason(ctx context.Context) error {
	if err := p.Err(ctx); err != nil {
		return err
	}
	if lost := p.endErr.Load(); lost != nil {
		return *lost
	}
	if !time.Now().Before(p.deadline) {
		return errExpired
	}
	return nil
}

// causeOf returns the reason behind an error: a connection that was ended on purpose
// fails everything in flight.
func (p *puller) causeOf(ctx context.Context, err error) error {
	if because := p.endReason(ctx); because != nil {
		return because
	}
	return err
}
