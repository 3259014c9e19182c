package transport

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/internal/localfault"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

const (
	dueInterval  = 100 * time.Millisecond // between two checks for due probes
	probeTimeout = 2 * time.Second
)

// PathsConfig configures a Paths. Self is required.
type PathsConfig struct {
	Self policies.ReplicaID
	// Transports carry blocks, best first, with distinct names. The Set probes them; the caller
	// runs them.
	Transports []Transport
	// Pool has the memory that the transports serve; nil if there is none.
	Pool Pool
	// Host returns the host on which a replica runs; nil if all run on one host.
	Host func(policies.ReplicaID) string
	// Paths returns the paths over which this replica can pull from a peer, best first
	// (links.Paths), or nil if they are unknown. It must not block. nil: none is known.
	Paths func(policies.ReplicaID) []links.Path
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
}

// Paths pulls blocks from peers: over the best transport that works, and over the next one when it fails. At the
// source it exports blocks over every transport by which the peer may pull. It has the transports of one pool, and moves
// the KV of engines with a block table (migrator/move) and of engines with a connector (migrator/kvport).
//
// A Pull writes only to the memory that it was opened for. What a failed pull, a successful one and a probe show of a
// transport counts for all later pulls of the Paths, whoever opens them. It is safe for concurrent use.
type Paths struct {
	cfg      PathsConfig
	log      *slog.Logger
	probeDue chan struct{} // holds a token after a failed pull, when probes may be due

	mu      sync.Mutex
	chooser *Chooser
}

// NewPaths returns a Paths that probes nothing before Run.
func NewPaths(c PathsConfig) *Paths {
	if c.Host == nil {
		c.Host = func(policies.ReplicaID) string { return "one" }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Paths{cfg: c, log: c.Logger, chooser: NewChooser(c.Transports...), probeDue: make(chan struct{}, 1)}
}

// Run probes the transports whenever a probe is due, until ctx ends. It returns nil.
func (s *Paths) Run(ctx context.Context) error {
	tick := time.NewTicker(dueInterval)
	defer tick.Stop()
	was := map[string]bool{} // transports whose last probe failed
	var had *Memory
	for {
		memory := s.memory()
		s.mu.Lock()
		if memory != had {
			had = memory
			s.chooser.ReprobeAll()
		}
		due := s.chooser.TransportsToProbe(time.Now())
		s.mu.Unlock()
		errs := make([]error, len(due))
		var all sync.WaitGroup
		for i, t := range due {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, probeTimeout)
				defer cancel()
				errs[i] = t.Probe(ctx)
			})
		}
		all.Wait()
		if ctx.Err() != nil {
			return nil
		}
		for i, t := range due {
			if err := errs[i]; (err != nil) != was[t.Name()] {
				s.log.Info("transport changed", "transport", t.Name(), "error", err)
				was[t.Name()] = err != nil
			}
			s.mu.Lock()
			s.chooser.RecordProbe(t.Name(), errs[i], time.Now())
			s.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.probeDue:
		case <-tick.C:
		}
	}
}

// memory returns the pool's present memory, nil for none.
func (s *Paths) memory() *Memory {
	if s.cfg.Pool == nil {
		return nil
	}
	m, _ := s.cfg.Pool.Memory()
	return m
}

// ProbeNow probes all transports at once, after something that they need has failed or recovered.
func (s *Paths) ProbeNow() {
	s.mu.Lock()
	s.chooser.ReprobeAll()
	s.mu.Unlock()
	s.wakeProbes()
}

func (s *Paths) wakeProbes() {
	select {
	case s.probeDue <- struct{}{}:
	default:
	}
}

// Status returns the transports, best first, then the pulls over them, by peer.
func (s *Paths) Status() []Path {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.chooser.Status(time.Now())
}

// Forget forgets a peer that has gone.
func (s *Paths) Forget(peer policies.ReplicaID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chooser.Forget(peer)
}

// pairWith describes pulls of this replica from a peer.
func (s *Paths) pairWith(peer policies.ReplicaID) Pair {
	p := Pair{Peer: peer, Host: s.cfg.Host(s.cfg.Self), PeerHost: s.cfg.Host(peer)}
	if s.cfg.Paths != nil {
		p.Paths = s.cfg.Paths(peer)
	}
	return p
}

// order returns those of the named transports over which this replica can pull, best first.
func (s *Paths) order(p Pair, names []string) []Transport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.chooser.Rank(p, names, time.Now())
}

// recordFailure records a failed pull, unless it was cancelled or this process ran out of a
// resource, which say nothing about the path.
func (s *Paths) recordFailure(ctx context.Context, p Pair, name string, err error) {
	if errors.Is(ctx.Err(), context.Canceled) || localfault.Is(err) {
		return
	}
	s.mu.Lock()
	s.chooser.RecordFailure(p.Peer, name, err, time.Now())
	s.mu.Unlock()
	s.wakeProbes()
}

// recordPull records a successful pull.
func (s *Paths) recordPull(p Pair, name string, stats Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chooser.RecordPull(p.Peer, name, stats, time.Now())
}

// PullNames returns the names of the transports over which this replica can pull from a peer, best
// first.
func (s *Paths) PullNames(peer policies.ReplicaID) []string {
	return pathNames(s.order(s.pairWith(peer), pathNames(s.cfg.Transports)))
}

// ExportNames returns the names of the transports over which a peer may pull from this replica.
func (s *Paths) ExportNames(peer policies.ReplicaID) []string { return pathNames(s.exports(peer)) }

// pathNames returns the names of transports.
func pathNames(list []Transport) []string {
	var out []string
	for _, t := range list {
		out = append(out, t.Name())
	}
	return out
}

// exports returns the transports over which a peer may pull from this replica. The peer records their
// results.
func (s *Paths) exports(peer policies.ReplicaID) []Transport {
	own, other := s.cfg.Host(s.cfg.Self), s.cfg.Host(peer)
	broken := map[string]bool{}
	for _, p := range s.Status() {
		if p.Peer == "" && p.Err != nil {
			broken[p.Transport] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(s.cfg.Transports), func(t Transport) bool { return broken[t.Name()] || !t.CanReach(own, other) })
}

// Export makes an offer for a grant with every transport over which its receiver may pull. A
// transport that fails to is left out.
func (s *Paths) Export(g Grant) (offers []Offer) {
	for _, t := range s.exports(g.Receiver) {
		offer, err := t.Export(g)
		if err != nil {
			s.log.Warn("transport ticket not created", "transport", t.Name(), "migration", g.Migration, "error", err)
			continue
		}
		offers = append(offers, offer)
	}
	return offers
}

// Announce lets the receiver of the offers for a migration read blocks.
func (s *Paths) Announce(migration string, blocks []uint32) {
	for _, t := range s.cfg.Transports {
		t.Announce(migration, blocks)
	}
}

// Revoke ends the grants for a migration. When it returns, no pull that succeeds reads
// the blocks any more.
func (s *Paths) Revoke(migration string) {
	for _, t := range s.cfg.Transports {
		t.Revoke(migration)
	}
}
