package move_test

import (
	"context"
	"errors"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/kvport"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
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
		return kvport.ErrUnavailable
	case v == refuse:
		return errRefused
	}
	return ctx.Err()
}

// insideTransport copies within the process.
type insideTransport struct {
	*transporttest.Memory
	faults *transporttest.Faults
}

func carryInside(n *replica) carrier {
	c := &insideTransport{faults: &transporttest.Faults{}}
	c.Memory = testkit.Must(transporttest.NewMemory(transporttest.MemoryConfig{Network: &n.w.net, Name: string(n.id), Pool: n.engine, Faults: c.faults}))
	return c
}

func (c *insideTransport) pull(ctx context.Context, p transport.Puller, _ *replica, plan transport.Plan, v verdict) (transport.Stats, error) {
	switch v {
	case refuse:
		c.faults.Set(transporttest.Fault{At: transporttest.AtPull, Kind: transporttest.Cut, Block: len(plan.Src) / 2})
	case rot:
		c.faults.Set(transporttest.Fault{At: transporttest.AtPull, Kind: transporttest.Corrupt, Block: len(plan.Src) - 1})
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
