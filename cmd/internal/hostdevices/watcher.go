// Package hostdevices shows the hardware of this host and of a fleet: for load reports, for the logs of daemons, and as
// the tables of "cascade devices".
//
// A Watcher inspects the host at intervals. Report and FleetReport print what was found. The package makes no decisions:
// package topology interprets a host, package links the pairs of replicas.
package hostdevices

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/migrator/device/inventory"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
)

// interval is the time between two readings: links and GPUs fail rarely, and a
// reading takes up to some hundred milliseconds with many GPUs.
const interval = time.Minute

// Config configures a Watcher.
type Config struct {
	// Host is the host to inspect. Its Name is required.
	Host inventory.Config
	// Read reads the inventory; nil means inventory.Read.
	Read func(inventory.Config) (*topology.Machine, error)
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
}

// Watcher keeps the latest inventory. Its methods are safe for concurrent use. A nil Watcher has no
// inventory.
type Watcher struct {
	cfg  Config
	last atomic.Pointer[topology.Machine]
}

// New returns a Watcher without a result. It starts nothing.
func New(cfg Config) *Watcher {
	if cfg.Read == nil {
		cfg.Read = inventory.Read
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Watcher{cfg: cfg}
}

// Machine returns the latest result, or nil before the first one. The result is shared and must not
// be changed.
func (s *Watcher) Machine() *topology.Machine {
	if s == nil {
		return nil
	}
	return s.last.Load()
}

// Run reads until ctx ends, and returns nil then.
func (s *Watcher) Run(ctx context.Context) error {
	if s == nil {
		return nil
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for last := ""; ; {
		m, err := s.cfg.Read(s.cfg.Host)
		if err == nil {
			last = ""
		} else if err.Error() != last { // log the same error once
			last = err.Error()
			s.cfg.Logger.Warn("reading this host's devices failed", "error", err)
		}
		s.last.Store(m)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
