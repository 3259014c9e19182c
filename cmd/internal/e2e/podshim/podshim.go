// Package podshim is, for tests, what a cluster has besides its API server: it makes the Pods of
// Deployments, runs Pods as processes, and writes the EndpointSlices of Services.
//
// New checks the configuration; Run compares the objects with what runs, twice a second,
// until its context ends. What a Pod runs is a function of the Config, so that a test chooses
// processes of its own for the images of others.
//
// Invariants: a Pod is Ready only after its Start has returned; its processes end before its
// object is removed; no object is touched that Run does not own: it writes Pods of Deployments,
// status, EndpointSlices, and nothing else.
//
// It does no more than tests of gateways need: no volumes but ConfigMaps, no probes, no
// rolling updates (a changed template replaces all Pods), no restarts, and a LoadBalancer is the
// first ready Pod itself.
package podshim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"
)

// period is the time between two comparisons.
const period = 500 * time.Millisecond

// Config is the configuration of a Shim.
type Config struct {
	// API is a client of the API server. Required.
	API *API
	// Start starts what the containers of a Pod do, and returns a function that ends it, as soon as
	// it serves. It is called on a goroutine for each Pod and must return when ctx ends. Required.
	Start func(ctx context.Context, p Pod) (stop func(), err error)
	// Address returns the address of a new Pod, which no other has. Required.
	Address func() (netip.Addr, error)
	// Host is the address of the machine that Pods run on, for their status. Required.
	Host netip.Addr
	// Node is its name. Default "node".
	Node   string
	Logger *slog.Logger // nil discards
}

func (c *Config) validate() error {
	switch {
	case c.API == nil:
		return errors.New("podshim: API is required")
	case c.Start == nil || c.Address == nil:
		return errors.New("podshim: Start and Address are required")
	case !c.Host.IsValid():
		return errors.New("podshim: Host is required")
	}
	if c.Node == "" {
		c.Node = "node"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Shim runs the Pods of one API server.
type Shim struct {
	cfg Config

	running map[string]*instance // by UID; owned by Run
	written map[string]string    // what was written last, by path; owned by Run
	failed  map[string]string    // the last error of each step; owned by Run
	group   sync.WaitGroup       // goroutines of instances
}

// New returns a Shim. Nothing runs before Run.
func New(c Config) (*Shim, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Shim{cfg: c, running: make(map[string]*instance), written: make(map[string]string), failed: make(map[string]string)}, nil
}

// Run runs Pods until ctx ends, stops all of them, and returns nil.
func (s *Shim) Run(ctx context.Context) error {
	defer s.group.Wait()
	defer func() {
		for _, i := range s.running {
			i.cancel()
		}
	}()
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		s.step(ctx, "deployments", s.syncDeployments)
		s.step(ctx, "pods", s.syncPods)
		s.step(ctx, "services", s.syncServices)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// step runs a comparison and logs each new error of it: the next comparison tries again.
func (s *Shim) step(ctx context.Context, what string, sync func(context.Context) error) {
	text := ""
	if err := sync(ctx); err != nil && ctx.Err() == nil {
		text = err.Error()
	}
	if text != "" && text != s.failed[what] {
		s.cfg.Logger.Warn("objects could not be compared, trying again", "what", what, "error", text)
	}
	s.failed[what] = text
}

// once calls write unless it has written the same text to the path before. What others change
// meanwhile is not written again.
func (s *Shim) once(path, text string, write func() error) error {
	if s.written[path] == text {
		return nil
	}
	err := write()
	if err == nil {
		s.written[path] = text
	}
	return err
}

// errorf names the operation and its object.
func errorf(what string, m metadata, err error) error {
	return fmt.Errorf("%s %s/%s: %w", what, m.Namespace, m.Name, err)
}
