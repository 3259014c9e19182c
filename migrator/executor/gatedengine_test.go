package executor_test

import (
	"context"
	"errors"

	"github.com/cascadeinfer/cascade/migrator/blocks"
	"github.com/cascadeinfer/cascade/migrator/internal/memtransport"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// passGate is called before every action of a migrator on another component; it waits while the
// replica is paused.
func (n *replica) passGate(ctx context.Context, point string) error {
	v := n.w.hitPoint(point)
	n.mu.Lock()
	frozen := n.frozen
	n.mu.Unlock()
	if frozen != nil {
		select {
		case <-frozen:
		case <-ctx.Done():
		}
	}
	switch {
	case n.dead():
		return blocks.ErrUnavailable
	case v == refuse:
		return errRefused
	}
	return ctx.Err()
}

// gatedEngine is an engine behind its migrator's gate.
type gatedEngine struct{ n *replica }

func (g *gatedEngine) Description() (blocks.Description, bool)     { return g.n.engine.Description() }
func (g *gatedEngine) Memory() (*transport.Memory, bool)           { return g.n.engine.Memory() }
func (g *gatedEngine) AbandonSession(why error)                    { g.n.engine.AbandonSession(why) }
func (g *gatedEngine) pass(ctx context.Context, call string) error { return g.n.passGate(ctx, call) }

func (g *gatedEngine) Table(ctx context.Context, leg string, from int) (blocks.Table, error) {
	if err := g.pass(ctx, "table"); err != nil {
		return blocks.Table{}, err
	}
	return g.n.engine.Table(ctx, leg, from)
}

func (g *gatedEngine) Freeze(ctx context.Context, leg string, from int) (blocks.Table, error) {
	if err := g.pass(ctx, "freeze"); err != nil {
		return blocks.Table{}, err
	}
	return g.n.engine.Freeze(ctx, leg, from)
}

func (g *gatedEngine) Thaw(ctx context.Context, leg string) error {
	if err := g.pass(ctx, "thaw"); err != nil {
		return err
	}
	return g.n.engine.Thaw(ctx, leg)
}

func (g *gatedEngine) Drop(ctx context.Context, leg string) error {
	if err := g.pass(ctx, "drop call"); err != nil {
		return err
	}
	return g.n.engine.Drop(ctx, leg)
}

func (g *gatedEngine) Reserve(ctx context.Context, id string, tokens int) ([]uint32, error) {
	if err := g.pass(ctx, "reserve"); err != nil {
		return nil, err
	}
	return g.n.engine.Reserve(ctx, id, tokens)
}

func (g *gatedEngine) MarkFilled(ctx context.Context, id string, from int, ids []uint32, computed int) error {
	if err := g.pass(ctx, "mark filled"); err != nil {
		return err
	}
	return g.n.engine.MarkFilled(ctx, id, from, ids, computed)
}

func (g *gatedEngine) Release(ctx context.Context, id string) error {
	if err := g.pass(ctx, "release"); err != nil {
		return err
	}
	return g.n.engine.Release(ctx, id)
}

// insideTransport copies within the process.
type insideTransport struct {
	*memtransport.Transport
	faults *memtransport.Faults
}

func carryInside(n *replica) carrier {
	c := &insideTransport{faults: &memtransport.Faults{}}
	var err error
	if c.Transport, err = memtransport.New(memtransport.Config{Network: &n.w.net, Name: string(n.id), Pool: n.engine, Faults: c.faults}); err != nil {
		panic(err)
	}
	return c
}

func (c *insideTransport) pull(ctx context.Context, p transport.Puller, _ *replica, plan transport.Plan, v verdict) (transport.Stats, error) {
	switch v {
	case refuse:
		c.faults.Set(memtransport.Fault{At: memtransport.AtPull, Kind: memtransport.Cut, Block: len(plan.Src) / 2})
	case rot:
		c.faults.Set(memtransport.Fault{At: memtransport.AtPull, Kind: memtransport.Corrupt, Block: len(plan.Src) - 1})
	default:
		c.faults.Set()
	}
	return p.Pull(ctx, plan)
}

// wire is a replica's transport, over links that can be cut. Its pulls take no time, so that the
// test can lock both pools meanwhile.
type wire struct {
	carrier
	n *replica
}

type wirePuller struct {
	transport.Puller
	n, source *replica
}

func (x *wire) Open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (transport.Puller, error) {
	source := x.n.w.replica(policies.ReplicaID(offer.Address))
	if err := x.n.passGate(ctx, "ticket"); err != nil {
		return nil, err
	}
	if !x.n.w.deliver(ctx.Done(), source, x.n) {
		return nil, ctx.Err()
	}
	p, err := x.carrier.Open(ctx, receiver, offer)
	if err != nil {
		return nil, err
	}
	return &wirePuller{p, x.n, source}, nil
}

func (p *wirePuller) Pull(ctx context.Context, plan transport.Plan) (transport.Stats, error) {
	w := p.n.w
	v := w.hitPoint("pull")
	if !w.deliver(ctx.Done(), p.source, p.n) {
		return transport.Stats{}, ctx.Err()
	}
	if p.source.dead() {
		return transport.Stats{}, errors.New("the connection broke")
	}
	for _, n := range w.replicas { // always in the same order
		if n == p.n || n == p.source {
			n.engine.mu.Lock()
			defer n.engine.mu.Unlock()
		}
	}
	return p.n.carrier.pull(ctx, p.Puller, p.source, plan, v)
}
