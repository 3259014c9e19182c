package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/internal/wakeup"
	"github.com/cascadeinfer/cascade/xds/auditlog"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
)

// refusals rolls plans that proxies of this control plane refused back in the store: the other
// control planes of the store, and this one after a restart, then do not send them either. It
// keeps the latest refusal of each model until its order has been decided: while new plans are
// held off, or the store does not answer, the order is given again.
type refusals struct {
	order func(context.Context, fleetstate.Order) error
	log   *slog.Logger
	added chan struct{} // capacity 1: pending has grown

	mu      sync.Mutex
	pending map[string]fleetstate.Refuse // by model
}

// reorderInterval is the time between two attempts to roll a refused plan back.
const reorderInterval = time.Second

func newRefusals(order func(context.Context, fleetstate.Order) error, log *slog.Logger) *refusals {
	return &refusals{order: order, log: log, added: make(chan struct{}, 1), pending: make(map[string]fleetstate.Refuse)}
}

// reportRefusal records a plan that proxies of this control plane refused, and has it rolled back.
func (c *Control) reportRefusal(r publish.Refusal) {
	c.cfg.Audit.Record(auditlog.Record{Action: auditlog.ProxyRefusal, Object: r.Name, Outcome: auditlog.Refused, Reason: r.Text, Who: r.Node})
	for _, p := range r.Plans {
		c.refusals.add(fleetstate.Refuse{Model: p.Model, Epoch: p.Epoch, To: p.Before, Why: fmt.Sprintf("%s refused %s: %s", r.Node, r.Name, r.Text), By: c.cfg.Name})
	}
}

// add keeps a refusal in place of an earlier one of its model. It does not block.
func (f *refusals) add(o fleetstate.Refuse) {
	f.mu.Lock()
	f.pending[o.Model] = o
	f.mu.Unlock()
	wakeup.Send(f.added)
}

// run orders the rollbacks until the context ends.
func (f *refusals) run(ctx context.Context) error {
	again := time.NewTicker(reorderInterval)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.added:
		case <-again.C:
		}
		f.mu.Lock()
		list := make([]fleetstate.Refuse, 0, len(f.pending))
		for _, o := range f.pending {
			list = append(list, o)
		}
		f.mu.Unlock()
		for _, o := range list {
			err := f.order(ctx, o)
			if undecided(err) || ctx.Err() != nil {
				continue
			}
			if err != nil {
				f.log.Warn("refused plan stays in the store; a restarted control plane will send it again", "model", o.Model, "epoch", uint64(o.Epoch), "error", err)
			}
			f.mu.Lock()
			if f.pending[o.Model] == o {
				delete(f.pending, o.Model)
			}
			f.mu.Unlock()
		}
	}
}

// undecided reports whether an order is to be given again. One that was stored after all then changes nothing.
func undecided(err error) bool {
	return errors.Is(err, fleetstate.ErrHeldOff) || errors.Is(err, fleetstate.ErrNotStored) || errors.Is(err, fleetstate.ErrUnanswered)
}
