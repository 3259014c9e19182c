package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
)

// ErrClosed is the error of a Pull that Close has ended, or that was called after it.
var ErrClosed = errors.New("the puller is closed")

// Steps is what one transport does for one pull.
type Steps struct {
	// Transport is the transport's name, for errors.
	Transport string
	// Local is the receiver's pool, which the pull holds; Remote is the layout of the
	// source's pool.
	Local  *transport.Memory
	Remote transport.Layout
	// Copy copies the blocks of a plan and returns bad with the entries appended whose
	// blocks do not have their checksums, in ascending order. It returns soon after ctx
	// ends or Interrupt is called. When it returns, the local memory does not change
	// any more.
	Copy func(ctx context.Context, plan transport.Plan, bad []int) ([]int, error)
	// Interrupt makes a Copy in progress return. It is called once, before Release, and
	// must not block.
	Interrupt func()
	// Release gives back everything that the transport acquired. It is called once.
	Release func() error
}

// Puller implements transport.Puller with the steps of one transport.
type Puller struct {
	steps   Steps
	closing atomic.Bool
	once    sync.Once
	result  error // of Release; written inside once

	mu     sync.Mutex // held by Pull, and by Close while it releases
	bad    []int
	failed error // returned by every further Pull
}

var _ transport.Puller = (*Puller)(nil)

// NewPuller returns a Puller that has been opened.
func NewPuller(s Steps) *Puller { return &Puller{steps: s} }

// Open opens a pull with open, unless the offer is for another transport, and says in
// its error which transport failed and where.
func Open[P transport.Puller](name string, offer transport.Offer, open func() (P, error)) (transport.Puller, error) {
	if offer.Transport != name {
		return nil, fmt.Errorf("%s transport: open: the offer is for transport %q", name, offer.Transport)
	}
	p, err := open()
	if err != nil {
		return nil, fmt.Errorf("%s transport: open %s: %w", name, offer.Address, err)
	}
	return p, nil
}

// Pull copies and verifies the blocks of a plan. See transport.Puller.
func (p *Puller) Pull(ctx context.Context, plan transport.Plan) (transport.Stats, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	start := time.Now()
	if p.failed == nil {
		p.failed = plan.Validate(p.steps.Remote, p.steps.Local.Layout)
	}
	if p.failed == nil {
		p.bad, p.failed = p.steps.Copy(ctx, plan, p.bad[:0])
	}
	if p.failed != nil {
		return transport.Stats{}, fmt.Errorf("%s transport: pull: %w", p.steps.Transport, p.failed)
	}
	stats := transport.Stats{Bytes: int64(len(plan.Src)) * p.steps.Local.BlockBytes(), Duration: time.Since(start)}
	if len(p.bad) > 0 {
		return stats, &transport.CorruptError{Blocks: append([]int(nil), p.bad...)}
	}
	return stats, nil
}

// Close ends the pull. See transport.Puller.
func (p *Puller) Close() error {
	p.once.Do(func() {
		p.closing.Store(true)
		p.steps.Interrupt()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.failed == nil {
			p.failed = ErrClosed
		}
		p.result = p.steps.Release()
	})
	return p.result
}

// Err returns why a Copy must return: ErrClosed, or the error of ctx; nil otherwise.
func (p *Puller) Err(ctx context.Context) error {
	if p.closing.Load() {
		return ErrClosed
	}
	return ctx.Err()
}

// Cause returns the error of ctx if ctx has ended, since that is what made a call fail
// with err, and err otherwise.
func Cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
