package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/cmd/internal/daemon"
	"github.com/cascadeinfer/cascade/cmd/internal/discovery"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/internal/identity"
)

// statusServers are the addresses at which "cascade-kube discover" shows what it does.
type statusServers struct {
	admin   net.Listener // on loopback, with /status
	metrics net.Listener // nil: none
	daemon  *daemon.Daemon
}

// serve serves them until ctx ends, and closes the listeners.
func (s statusServers) serve(ctx context.Context, k *keeper) error {
	s.daemon.Metrics.MustRegister(discovery.NewCollector(func() discovery.Metrics {
		s := k.status(time.Now())
		return discovery.Metrics{Pods: s.counts, Faults: len(s.Faults), Writes: s.writes}
	}))
	ready := func() string {
		if s := k.status(time.Now()); s.WrittenAt == nil {
			return "the fleet file is not written yet: " + strings.Join(s.Faults, "; ")
		}
		return ""
	}
	mux := adminserver.Handler(s.daemon.Metrics, ready)
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(k.status(time.Now())) // fails only where the client is gone
	})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return adminserver.Serve(ctx, s.admin, mux, adminserver.Access{}) })
	g.Go(func() error { return s.daemon.ServeMetrics(ctx, s.metrics, ready) })
	return g.Wait()
}

// newDaemon returns the process of this command. Scrapers of --metrics off loopback, which are operators, are served by
// the certificate of the control plane beside this process, from the same fleet file.
func (d *discoverFlags) newDaemon(ctx context.Context, log *slog.Logger) (*daemon.Daemon, error) {
	c := daemon.Config{Log: log}
	if d.metrics != "" { // which alone needs the certificate
		_, base, err := d.file.ReadBase()
		if err != nil {
			return nil, fmt.Errorf("--metrics: %w", err)
		}
		c.Fleet, c.Role = wiring.Fleet{Fleet: base, Dir: filepath.Dir(d.file.Base)}, identity.Control
		c.Name = c.Fleet.ControlCertificate()
	}
	own, err := daemon.New(ctx, c)
	if err != nil && d.metrics != "" {
		return nil, fmt.Errorf("--metrics: %w", err)
	}
	return own, err
}
