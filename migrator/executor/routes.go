package executor

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// routes is what the mover knows of its transports. It is safe for concurrent
// use.
type routes struct {
	mu     sync.Mutex
	choose *transport.Chooser
	failed chan struct{} // has a value after a pull has failed: probes may be due
}

func newRoutes(transports []transport.Transport) routes {
	return routes{choose: transport.NewChooser(transports...), failed: make(chan struct{}, 1)}
}

// from is this replica, which pulls from a peer.
func (m *Mover) from(peer policies.ReplicaID) transport.Pair {
	p := transport.Pair{Peer: peer, Host: m.cfg.Node(m.cfg.Self), PeerHost: m.cfg.Node(peer)}
	if m.cfg.Ways != nil {
		p.Ways = m.cfg.Ways(peer)
	}
	return p
}

// Recheck has all transports probed now: what they need has failed, or is there again.
func (m *Mover) Recheck() {
	m.routes.mu.Lock()
	m.routes.choose.ReprobeAll()
	m.routes.mu.Unlock()
	select {
	case m.routes.failed <- struct{}{}:
	default:
	}
}

// Routes returns the transports, best first, then what was pulled by them, by
// peer.
func (m *Mover) Routes() []transport.Path {
	m.routes.mu.Lock()
	defer m.routes.mu.Unlock()
	return m.routes.choose.Status(time.Now())
}

// probe asks the transports whether they work, whenever that is due.
func (m *Mover) probe() {
	tick := time.NewTicker(probeTick)
	defer tick.Stop()
	was := map[string]bool{} // those that were broken
	var had *transport.Memory
	for {
		var memory *transport.Memory
		if m.cfg.Engine != nil {
			memory, _ = m.cfg.Engine.Memory()
		}
		m.routes.mu.Lock()
		if memory != had {
			had = memory
			m.routes.choose.ReprobeAll()
		}
		due := m.routes.choose.TransportsToProbe(time.Now())
		m.routes.mu.Unlock()
		errs := make([]error, len(due))
		var all sync.WaitGroup
		for i, t := range due {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(m.ctx, probeTimeout)
				defer cancel()
				errs[i] = t.Probe(ctx)
			})
		}
		all.Wait()
		if m.ctx.Err() != nil {
			return
		}
		for i, t := range due {
			if err := errs[i]; (err != nil) != was[t.Name()] {
				m.log.Info("a transport changes", "transport", t.Name(), "error", err)
				was[t.Name()] = err != nil
			}
			m.routes.mu.Lock()
			m.routes.choose.RecordProbe(t.Name(), errs[i], time.Now())
			m.routes.mu.Unlock()
		}
		select {
		case <-m.ctx.Done():
			return
		case <-m.routes.failed:
		case <-tick.C:
		}
	}
}

// order returns those of the named transports by which this replica can pull,
// best first.
func (r *routes) order(p transport.Pair, names []string) []transport.Transport {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []transport.Transport
	for _, c := range r.choose.Rank(p, names, time.Now()) {
		out = append(out, c.Transport)
	}
	return out
}

// fail takes note of a pull that failed. That a move was cut short says nothing
// about its path.
func (r *routes) fail(ctx context.Context, p transport.Pair, name string, err error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	r.mu.Lock()
	r.choose.RecordFailure(p.Peer, name, err, time.Now())
	r.mu.Unlock()
	select {
	case r.failed <- struct{}{}:
	default:
	}
}

// pulled takes note of one that went well.
func (r *routes) pulled(p transport.Pair, name string, s transport.Stats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.choose.RecordPull(p.Peer, name, s, time.Now())
}

// forget drops what is known of a peer that has gone.
func (r *routes) forget(peer policies.ReplicaID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.choose.Forget(peer)
}

// names are those of transports.
func names(list []transport.Transport) []string {
	var out []string
	for _, t := range list {
		out = append(out, t.Name())
	}
	return out
}

// pulling returns the names of the transports by which this replica can pull
// from a peer, best first.
func (m *Mover) pulling(peer policies.ReplicaID) []string {
	return names(m.routes.order(m.from(peer), names(m.cfg.Transports)))
}

// serving returns the transports by which a peer may pull from this replica.
// What it does with them is the peer's to remember.
func (m *Mover) serving(peer policies.ReplicaID) []transport.Transport {
	own, other := m.cfg.Node(m.cfg.Self), m.cfg.Node(peer)
	broken := map[string]bool{}
	for _, p := range m.Routes() {
		if p.Peer == "" && p.Err != nil {
			broken[p.Transport] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(m.cfg.Transports), func(t transport.Transport) bool { return broken[t.Name()] || !t.CanReach(own, other) })
}
