package kvport

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
	"github.com/cascadeinfer/cascade/policies"
)

// newPaths runs a transport within the process, whose pulls have hooks, and returns its paths.
func newPaths(t *testing.T, n *transporttest.Network, self policies.ReplicaID, pool transport.Pool, faults *transporttest.Faults, h *hooks) *transport.Paths {
	t.Helper()
	carrier := testkit.Must(transporttest.NewMemory(transporttest.MemoryConfig{Network: n, Name: string(self), Pool: pool, Faults: faults}))
	t.Cleanup(testkit.Run(t, carrier.Run))
	return transport.NewPaths(transport.PathsConfig{Self: self, Transports: []transport.Transport{hooked{carrier, h}}, Pool: pool})
}

// canExport reports whether a transport runs.
func canExport(set *transport.Paths) bool {
	g := transport.Grant{Migration: "trial", Receiver: "r9", Deadline: time.Now().Add(time.Minute)}
	offers := set.Export(g)
	set.Revoke(g.Migration)
	return len(offers) > 0
}

// callPeer calls a peer, and returns its answer while the call goes on.
func callPeer[A any](calls *sync.WaitGroup, serve func(answer func(A) error) error) (a A, err error) {
	answers, ended := make(chan A, 1), make(chan error, 1)
	calls.Go(func() { ended <- serve(func(a A) error { answers <- a; return nil }) })
	select {
	case a = <-answers:
	case err = <-ended:
	}
	return a, err
}

// hooks see the pulls of transports.
type hooks struct {
	open      atomic.Int32                    // pulls that are open
	afterPull func(ctx context.Context) error // at the end of each pull; its error is that of the transport; nil: none
}

type hooked struct {
	transport.Transport
	*hooks
}

type hookedPuller struct {
	transport.Puller
	*hooks
	closed bool
}

func (h hooked) Open(ctx context.Context, receiver policies.ReplicaID, o transport.Offer) (transport.Puller, error) {
	p, err := h.Transport.Open(ctx, receiver, o)
	if err != nil {
		return nil, err
	}
	h.open.Add(1)
	return &hookedPuller{Puller: p, hooks: h.hooks}, nil
}

func (p *hookedPuller) Pull(ctx context.Context, plan transport.Plan) (transport.Stats, error) {
	stats, err := p.Puller.Pull(ctx, plan)
	if err == nil && p.afterPull != nil {
		err = p.afterPull(ctx)
	}
	return stats, err
}

func (p *hookedPuller) Close() error {
	if !p.closed {
		p.closed = true
		p.open.Add(-1)
	}
	return p.Puller.Close()
}
