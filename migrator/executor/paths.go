package executor

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/localfault"
)

// transportPaths chooses the transport of a pull. It is safe for concurrent use.
type transportPaths struct {
	mu       sync.Mutex
	chooser  *transport.Chooser
	probeDue chan struct{} // holds a token after a failed pull, when probes may be due
}

func newTransportPaths(transports []transport.Transport) transportPaths {
	return transportPaths{chooser: transport.NewChooser(transports...), probeDue: make(chan struct{}, 1)}
}

// pairWith describes pulls of this replica from a peer.
func (m *Executor) pairWith(peer policies.ReplicaID) transport.Pair {
	p := transport.Pair{Peer: peer, Host: m.cfg.Host(m.cfg.Self), PeerHost: m.cfg.Host(peer)}
	if m.cfg.Paths != nil {
		p.Paths = m.cfg.Paths(peer)
	}
	return p
}

// ProbeNow probes all transports at once, after something that they need has failed or recovered.
func (m *Executor) ProbeNow() {
	m.paths.mu.Lock()
	m.paths.chooser.ReprobeAll()
	m.paths.mu.Unlock()
	select {
	case m.paths.probeDue <- struct{}{}:
	default:
	}
}

// TransportPaths returns the transports, best first, then the pulls over them, by peer.
func (m *Executor) TransportPaths() []transport.Path {
	m.paths.mu.Lock()
	defer m.paths.mu.Unlock()
	return m.paths.chooser.Status(time.Now())
}

// probeTransports probes the transports whenever a probe is due, until ctx ends.
func (m *Executor) probeTransports() {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	was := map[string]bool{} // transports whose last probe failed
	var had *transport.Memory
	for {
		var memory *transport.Memory
		if m.cfg.Engine != nil {
			memory, _ = m.cfg.Engine.Memory()
		}
		m.paths.mu.Lock()
		if memory != had {
			had = memory
			m.paths.chooser.ReprobeAll()
		}
		due := m.paths.chooser.TransportsToProbe(time.Now())
		m.paths.mu.Unlock()
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
				m.log.Info("transport changed", "transport", t.Name(), "error", err)
				was[t.Name()] = err != nil
			}
			m.paths.mu.Lock()
			m.paths.chooser.RecordProbe(t.Name(), errs[i], time.Now())
			m.paths.mu.Unlock()
		}
		select {
		case <-m.ctx.Done():
			return
		case <-m.paths.probeDue:
		case <-tick.C:
		}
	}
}

// order returns those of the named transports over which this replica can pull, best first.
func (r *transportPaths) order(p transport.Pair, names []string) []transport.Transport {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []transport.Transport
	for _, c := range r.chooser.Rank(p, names, time.Now()) {
		out = append(out, c.Transport)
	}
	return out
}

// recordFailure records a failed pull, unless its migration was cancelled or this process
// ran out of a resource, which say nothing about the path.
func (r *transportPaths) recordFailure(ctx context.Context, p transport.Pair, name string, err error) {
	if errors.Is(ctx.Err(), context.Canceled) || localfault.Is(err) {
		return
	}
	r.mu.Lock()
	r.chooser.RecordFailure(p.Peer, name, err, time.Now())
	r.mu.Unlock()
	select {
	case r.probeDue <- struct{}{}:
	default:
	}
}

// recordPull records a successful pull.
func (r *transportPaths) recordPull(p transport.Pair, name string, s transport.Stats) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.chooser.RecordPull(p.Peer, name, s, time.Now())
}

// forgetPeer forgets a peer that has gone.
func (r *transportPaths) forgetPeer(peer policies.ReplicaID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.chooser.Forget(peer)
}

// transportNames returns the names of transports.
func transportNames(list []transport.Transport) []string {
	var out []string
	for _, t := range list {
		out = append(out, t.Name())
	}
	return out
}

// pullTransports returns the names of the transports over which this replica can pull
// from a peer, best first.
func (m *Executor) pullTransports(peer policies.ReplicaID) []string {
	return transportNames(m.paths.order(m.pairWith(peer), transportNames(m.cfg.Transports)))
}

// exportTransports returns the transports over which a peer may pull from this replica. The peer
// records their results.
func (m *Executor) exportTransports(peer policies.ReplicaID) []transport.Transport {
	own, other := m.cfg.Host(m.cfg.Self), m.cfg.Host(peer)
	broken := map[string]bool{}
	for _, p := range m.TransportPaths() {
		if p.Peer == "" && p.Err != nil {
			broken[p.Transport] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(m.cfg.Transports), func(t transport.Transport) bool { return broken[t.Name()] || !t.CanReach(own, other) })
}
