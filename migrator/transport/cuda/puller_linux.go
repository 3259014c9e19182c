package cuda

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/internal/localsocket"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

var errClosed = errors.New("the puller is closed")

// Open presents a ticket, and maps the source's pool. See transport.Target.
func (t *Transport) Open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (transport.Puller, error) {
	p, err := t.open(ctx, receiver, offer)
	if err != nil {
		return nil, fmt.Errorf("cuda transport: open %s: %w", offer.Address, err)
	}
	return p, nil
}

func (t *Transport) open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (_ *puller, err error) {
	if offer.Transport != t.Name() {
		return nil, fmt.Errorf("an offer for transport %q", offer.Transport)
	}
	p := &puller{logger: t.config.Logger}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.give())
		}
	}()
	if p.memory, err = transport.HoldDevice(t.config.Pool); err != nil {
		return nil, err
	}
	own, err := t.own(p.memory)
	if err != nil {
		return nil, err
	}
	p.gpu = own.gpu
	s, err := localsocket.Open(ctx, suffix, receiver, offer)
	if err != nil {
		return nil, err
	}
	p.session = s
	if s.File != nil {
		defer s.File.Close()
	}
	if err := s.Layout.Matches(p.memory.Layout); err != nil {
		return nil, err
	}
	handle, err := ParseHandle(s.Extra, s.Layout.End())
	if err != nil {
		return nil, err
	}
	if (handle.Kind == VMM) != (s.File != nil) {
		return nil, errors.New("the source's handle and its descriptor do not belong together")
	}
	if err := p.gpu.reaches(handle.GPU); err != nil {
		return nil, err
	}
	return p, p.gpu.use(nil, func(h *hold) error { return p.prepare(h, own, handle, s.File, offer.Address) })
}

// reaches says why this GPU cannot read the memory of another.
func (g *GPU) reaches(uuid [16]byte) error {
	if uuid == g.info.UUID {
		return nil
	}
	n, err := g.config.Driver.Count()
	if err != nil {
		return err
	}
	for i := range n {
		d, err := g.config.Driver.Device(i)
		if err != nil {
			return err
		}
		if d.UUID != uuid {
			continue
		}
		can, err := g.config.Driver.CanAccess(g.config.Ordinal, i)
		if err == nil && !can {
			err = fmt.Errorf("gpu %d has no path to gpu %d; use tcp", g.config.Ordinal, i)
		}
		return err
	}
	return errors.New("the source's GPU is not visible to this process; use tcp")
}

// puller is one open move: a connection, a lane and both pools in one context.
type puller struct {
	gpu     *GPU
	logger  *slog.Logger
	session *localsocket.Session
	memory  *transport.Memory
	hold    *hold // of all that follows
	lane    *lane
	own     *mapping
	theirs  *mapping

	closing atomic.Bool
	once    sync.Once

	mu   sync.Mutex // held by Pull, and by Close when it gives back
	bad  []int
	over error // why the puller is of no use any more
}

// prepare maps both pools and takes a lane.
func (p *puller) prepare(h *hold, own *Memory, theirs Handle, file *os.File, address string) (err error) {
	p.hold = h
	if p.own, err = own.mapped(h); err != nil {
		return err
	}
	k := key{address: address, id: theirs.ID}
	if p.theirs, err = h.mapped(k, func() (*mapping, error) {
		if theirs.ID == own.handle.ID { // an engine that is asked for its own blocks
			return nil, errors.New("the source's pool is this side's own")
		}
		m, err := h.openHandle(theirs, file, cuda.ReadOnly)
		if theirs.Kind == VMM && (cuda.Is(err, cuda.NotSupported) || cuda.Is(err, cuda.InvalidValue)) {
			p.logger.Warn("cuda transport: the driver maps no memory for reading only; the source's pool is mapped for writing too", "source", address)
			m, err = h.openHandle(theirs, file, cuda.ReadWrite)
		}
		return m, err
	}); err != nil {
		return err
	}
	if p.theirs.size < p.session.Layout.End() {
		return errors.New("the source's pool is larger than it was")
	}
	p.lane, err = h.lane()
	return err
}

// Pull copies on the GPU. See transport.Puller.
func (p *puller) Pull(ctx context.Context, plan transport.Plan) (transport.Stats, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	start := time.Now()
	if p.over == nil {
		p.bad = p.bad[:0]
		p.over = p.copy(ctx, plan)
	}
	if p.over != nil {
		return transport.Stats{}, fmt.Errorf("cuda transport: pull: %w", p.over)
	}
	stats := transport.Stats{
		Blocks: len(plan.Src), Bytes: int64(len(plan.Src)) * p.memory.BlockBytes(), Took: time.Since(start),
	}
	if len(p.bad) > 0 {
		return stats, &transport.CorruptError{Blocks: append([]int(nil), p.bad...)}
	}
	return stats, nil
}

func (p *puller) copy(ctx context.Context, plan transport.Plan) error {
	if err := plan.Fits(p.session.Layout, p.memory.Layout); err != nil {
		return err
	}
	goOn := func() error {
		if p.closing.Load() {
			return errClosed
		}
		return ctx.Err()
	}
	if err := goOn(); err != nil {
		return err
	}
	from, to := end{p.theirs.pool, p.session.Layout}, end{p.own.pool, p.memory.Layout}
	if err := p.gpu.use(p.hold, func(*hold) (err error) {
		p.bad, err = p.lane.copyBlocks(p.gpu.config.Groups, from, to, plan, p.bad, goOn)
		return err
	}); err != nil {
		return err
	}
	if err := goOn(); err != nil {
		return err
	}
	return p.session.Check(ctx)
}

// Close ends the move. See transport.Puller.
func (p *puller) Close() error {
	var err error
	p.once.Do(func() {
		p.closing.Store(true)
		p.session.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.over == nil {
			p.over = errClosed
		}
		err = p.give()
	})
	return err
}

// give gives back what the puller has of the connection, the GPU and the memory.
func (p *puller) give() error {
	if p.session != nil {
		p.session.Close()
	}
	var err error
	if p.hold != nil {
		// In a context that has ended everything is given back already.
		err = p.gpu.use(p.hold, func(h *hold) error {
			now := time.Now()
			if p.own != nil {
				h.unmap(p.own, now)
			}
			if p.theirs != nil {
				h.unmap(p.theirs, now)
			}
			if p.lane == nil {
				return nil
			}
			return h.leave(p.lane)
		})
		if errors.Is(err, errOver) {
			err = nil
		}
	}
	if p.memory != nil {
		p.memory.Release()
	}
	return err
}
