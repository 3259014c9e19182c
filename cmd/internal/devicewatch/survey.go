// Package devicewatch looks now and then at what the machine has, for those who tell
// others of it. It decides nothing; what a machine means is package topology's to
// say.
package devicewatch

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/migrator/device/inventory"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
)

// defaultInterval is how old what is known may be: links and GPUs fail rarely, and a
// look takes up to some hundred milliseconds where there are many GPUs.
const defaultInterval = time.Minute

// Config says where to look, and how often.
type Config struct {
	// Host is the machine. Required is its Name, the node's.
	Host inventory.Config
	// Interval is the time between two looks; 0 means a minute.
	Interval time.Duration
	// Read looks; nil means inventory.Read.
	Read func(inventory.Config) (*topology.Machine, error)
	// Logger takes what went wrong where something should have been; nil discards.
	Logger *slog.Logger
}

// Watcher is what was seen last. Its methods may be called from any goroutine. A nil
// Survey never sees anything.
type Watcher struct {
	cfg  Config
	last atomic.Pointer[topology.Machine]
}

// New returns a Survey that has seen nothing; it starts nothing.
func New(cfg Config) *Watcher {
	if cfg.Interval <= 0 {
		cfg.Interval = defaultInterval
	}
	if cfg.Read == nil {
		cfg.Read = inventory.Read
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Watcher{cfg: cfg}
}

// Machine is what was seen last, nil before the first look. It is shared and must not
// be changed.
func (s *Watcher) Machine() *topology.Machine {
	if s == nil {
		return nil
	}
	return s.last.Load()
}

// Run looks until ctx ends, and returns nil then.
func (s *Watcher) Run(ctx context.Context) error {
	if s == nil {
		return nil
	}
	tick := time.NewTicker(s.cfg.Interval)
	defer tick.Stop()
	for was := ""; ; {
		m, err := s.cfg.Read(s.cfg.Host)
		if err == nil {
			was = ""
		} else if err.Error() != was { // what stays wrong is worth one line
			was = err.Error()
			s.cfg.Logger.Warn("this machine's devices", "error", err)
		}
		s.last.Store(m)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
