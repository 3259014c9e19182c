package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/store"
)

// storeWrite is a proposal on its way into the store. There is at most one at a time,
// in a goroutine of its own: reports are handled while the store is slow or hangs.
type storeWrite struct {
	proposal *Proposal
	began    time.Time
	timeout  time.Duration
	order    *pendingOrder // contained in the proposal; nil: none
	// abandoned says that the store did not answer in time. The proposal then counts as
	// not stored, and no other one is begun before the answer.
	abandoned bool
}

// stuck returns the error of a write that the store has not answered.
func (w *storeWrite) stuck(now time.Time) error {
	return fmt.Errorf("the store has not answered for %v: check its disk, its file server or etcd", now.Sub(w.began).Round(time.Second))
}

// writeResult is the store's answer to a write.
type writeResult struct {
	version store.Version
	err     error
}

// answerDelay is how long after its timeout a write may still return before it is
// abandoned: files do not end when a context does.
const answerDelay = 500 * time.Millisecond

// startWrite begins to store a proposal. It returns false while an earlier write hangs.
func (f *Fleet) startWrite(ctx context.Context, now time.Time, p *Proposal) bool {
	if f.writing != nil {
		return false
	}
	w := &storeWrite{proposal: p, began: now, timeout: storeTimeout}
	if p.withLease {
		w.timeout = leaseTimeout
	}
	f.writing = w
	old := f.version
	// A write that has begun when the control plane ends may be completed.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.timeout)
	go func() {
		defer cancel()
		version, err := f.cfg.Store.CompareAndSwap(ctx, old, p.Object)
		f.written <- writeResult{version, err}
	}()
	return true
}

// checkWrite abandons a write that the store does not answer.
func (f *Fleet) checkWrite(ctx context.Context, now time.Time) {
	w := f.writing
	if w == nil || now.Sub(w.began) < w.timeout+answerDelay {
		return
	}
	err := w.stuck(now)
	f.NoteStore(StoreWrite, err)
	if w.abandoned {
		return
	}
	w.abandoned = true
	f.step(ctx, now, NotStored{})
	if w.order != nil {
		f.endOrder(fmt.Errorf("%w: %w", fleetstate.ErrUnanswered, err))
	}
	for len(f.orders) > 0 {
		f.endOrder(fmt.Errorf("%w: %w", fleetstate.ErrNotStored, err))
	}
}

// handleWritten applies the store's answer to the write in progress. If the write was
// abandoned and has succeeded after all, the store's watch delivers the object.
func (f *Fleet) handleWritten(ctx context.Context, r writeResult) {
	w, now := f.writing, time.Now()
	f.writing = nil
	conflict := errors.Is(r.err, store.ErrConflict) && f.cfg.Shared
	switch {
	case conflict:
		f.log.Debug("another control plane wrote first", "error", r.err)
	default:
		f.NoteStore(StoreWrite, r.err)
	}
	if r.err == nil {
		f.announcePlans(w.proposal.Changes)
	}
	if w.abandoned {
		return
	}
	if r.err != nil {
		f.step(ctx, now, NotStored{})
	} else {
		f.version, f.unconfirmed = r.version, append(f.unconfirmed, r.version)
		for _, c := range w.proposal.Changes {
			f.log.Info("new plan stored", "model", c.Model, "epoch", c.Epoch, "stages", len(c.Stages), "reason", c.Reason)
		}
		f.step(ctx, now, Stored{w.proposal.Object})
	}
	f.endWrite(now, w.order, r.err)
	f.nextOrder(ctx)
}

// announcePlans calls Config.OnPlan for the changes that it is for.
func (f *Fleet) announcePlans(changes []fleetstate.Change) {
	for _, c := range changes {
		if f.cfg.OnPlan != nil && c.Replaces() && c.Decision != planner.Refined {
			f.cfg.OnPlan(c)
		}
	}
}

// stepDown waits for the write in progress, and then releases the lease, so that
// another control plane leads at once.
func (f *Fleet) stepDown(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepDownTimeout)
	defer cancel()
	if f.writing != nil {
		select {
		case r := <-f.written:
			f.handleWritten(ctx, r)
		case <-ctx.Done():
			return // the store hangs: the lease expires by itself
		}
	}
	o, ok := f.state.StepDown(time.Now())
	if !ok || f.writing != nil {
		return
	}
	if _, err := f.cfg.Store.CompareAndSwap(ctx, f.version, o); err != nil {
		f.log.Debug("lease not given up, it expires by itself", "error", err)
	}
}
