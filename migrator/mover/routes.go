package mover

import (
	"context"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// routes knows which transports work on this machine. It is safe for concurrent
// use.
type routes struct {
	mu     sync.Mutex
	broken []error // why not, by their place in Config.Transports
}

// Route is a transport and why it cannot be used on this machine, nil when it
// can.
type Route struct {
	Transport string
	Broken    error
}

// Routes returns the transports, best first.
func (m *Mover) Routes() []Route {
	m.routes.mu.Lock()
	defer m.routes.mu.Unlock()
	var out []Route
	for i, t := range m.cfg.Transports {
		out = append(out, Route{t.Name(), m.routes.broken[i]})
	}
	return out
}

// probe asks each transport whether it works, now and again.
func (m *Mover) probe() {
	for i, t := range m.cfg.Transports {
		m.workers.Go(func() {
			for was := error(nil); ; {
				ctx, cancel := context.WithTimeout(m.ctx, probeTimeout)
				err := t.Probe(ctx)
				cancel()
				if m.ctx.Err() != nil {
					return
				}
				if (err == nil) != (was == nil) {
					m.log.Info("a transport changes", "transport", t.Name(), "error", err)
				}
				m.routes.mu.Lock()
				m.routes.broken[i] = err
				m.routes.mu.Unlock()
				was = err
				select {
				case <-m.ctx.Done():
					return
				case <-time.After(probeEvery):
				}
			}
		})
	}
}

// usable returns the transports that work and carry blocks from one replica to
// another, best first.
func (m *Mover) usable(from, to policies.ReplicaID) []transport.Transport {
	m.routes.mu.Lock()
	defer m.routes.mu.Unlock()
	var out []transport.Transport
	for i, t := range m.cfg.Transports {
		if m.routes.broken[i] == nil && t.Reaches(m.cfg.Node(from), m.cfg.Node(to)) {
			out = append(out, t)
		}
	}
	return out
}

// between returns the names of those.
func (m *Mover) between(from, to policies.ReplicaID) []string {
	var names []string
	for _, t := range m.usable(from, to) {
		names = append(names, t.Name())
	}
	return names
}
