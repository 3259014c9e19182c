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

// cursor goes through the bytes of a plan, region by region, in the plan's order:
// so neighbours in both pools become one request. Part k is region k/blocks of entry
// k%blocks.
type cursor struct {
	plan   transport.Plan
	source transport.Layout
	target transport.Layout
	part   int   // the next one
	at     int64 // and its first byte that is not asked for
}

// over reports whether nothing is left.
func (c *cursor) over() bool { return c.part == len(c.plan.Src)*len(c.target.Regions) }

// next is the next run of bytes that lie together in both pools, at most so long:
// where it begins in each, counted from the pools' first bytes.
func (c *cursor) next(most int64) (from, to, n int64) {
	for !c.over() {
		r, i := c.part/len(c.plan.Src), c.part%len(c.plan.Src)
		s, d := c.source.Regions[r], c.target.Regions[r]
		src, dst := s.Offset+int64(c.plan.Src[i])*s.Stride+c.at, d.Offset+int64(c.plan.Dst[i])*d.Stride+c.at
		if n == 0 {
			from, to = src, dst
		} else if from+n != src || to+n != dst || n == most {
			break
		}
		take := min(d.Bytes-c.at, most-n)
		n, c.at = n+take, c.at+take
		if c.at < d.Bytes {
			break
		}
		c.part, c.at = c.part+1, 0
	}
	return from, to, n
}

// batch fills the work of one batch, and returns how much it is. The last request
// tells when all have ended.
func (p *puller) batch(c *cursor) (n int) {
	for bytes := int64(0); n < len(p.work) && bytes < batchBytes; n++ {
		from, to, length := c.next(readBytes)
		if length == 0 {
			break
		}
		p.work[n] = verbs.Work{
			Local: p.region.Base + uint64(to), LocalKey: p.region.Local, Remote: p.key.base + uint64(from), RemoteKey: p.key.key, Length: uint32(length),
		}
		bytes += length
	}
	if n > 0 {
		p.work[n-1].Flags = verbs.Signaled
	}
	return n
}

// pull asks for a plan in batches, some of them at a time, and verifies each while
// the next ones are on their way.
func (p *puller) pull(ctx context.Context, plan transport.Plan) error {
	if err := plan.Fits(p.remote, p.memory.Layout); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { p.queue.SetDeadline(time.Unix(1, 0)) })()
	p.queue.SetDeadline(p.deadline)
	c := cursor{plan: plan, source: p.remote, target: p.memory.Layout}
	posted, ended, verified := 0, 0, 0 // batches, batches, parts
	for {
		for posted < ended+depth && !c.over() {
			if err := p.goOn(ctx); err != nil {
				return err
			}
			n := p.batch(&c)
			p.work[n-1].ID = uint64(posted)
			p.marks[posted%depth] = c.part
			posted++
			if _, err := p.pair.Post(verbs.Read, p.work[:n]); err != nil {
				return p.why(ctx, err)
			}
		}
		if posted == ended {
			break
		}
		n, err := p.next(ctx)
		if err != nil {
			return err
		}
		for _, w := range p.done[:n] {
			if err := p.queue.Fail(w); err != nil {
				return p.why(ctx, err)
			}
			if w.ID != uint64(ended) {
				return errors.New("a batch has ended before the one in front of it")
			}
			ended++
		}
		whole := p.marks[(ended-1)%depth]
		if p.memory.Device == nil {
			if err := transport.Guard(func() error {
				p.bad = verify(p.memory, plan, verified, whole, p.bad)
				return nil
			}); err != nil {
				return err
			}
		}
		verified = whole
	}
	if p.memory.Device != nil {
		var err error
		if p.bad, err = verifyDevice(p.memory, plan, p.bad); err != nil {
			return err
		}
	}
	if len(p.bad) > 0 {
		slices.Sort(p.bad)
		p.bad = slices.Compact(p.bad)
	}
	return p.goOn(ctx)
}

// next waits for completions.
func (p *puller) next(ctx context.Context) (int, error) {
	for {
		n, err := p.queue.Next(p.done)
		if err == nil {
			return n, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, err
		}
		if err := p.goOn(ctx); err != nil {
			return 0, err
		}
		p.queue.SetDeadline(p.deadline) // it was that of an earlier pull
	}
}

// goOn says why a pull must end.
func (p *puller) goOn(ctx context.Context) error {
	if p.closing.Load() {
		return errClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if lost := p.lost.Load(); lost != nil {
		return *lost
	}
	if !time.Now().Before(p.deadline) {
		return errExpired
	}
	return nil
}

// why is what an error comes from: a connection that was ended on purpose fails all
// that is under way.
func (p *puller) why(ctx context.Context, err error) error {
	if because := p.goOn(ctx); because != nil {
		return because
	}
	return err
}
