package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/cmd/internal/controld"
	"github.com/cascadeinfer/cascade/cmd/internal/discovery"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
)

// statusServers are the addresses at which "cascade-kube discover" shows what it does.
type statusServers struct {
	admin   net.Listener // on loopback, with /status
	metrics net.Listener // nil: none
	access  adminserver.Access
}

// serve serves them until ctx ends, and closes the listeners.
func (s statusServers) serve(ctx context.Context, k *keeper) error {
	metrics := newDiscoveryRegistry(k)
	ready := func() string {
		if s := k.status(time.Now()); s.WrittenAt == nil {
			return "the fleet file is not written yet: " + strings.Join(s.Faults, "; ")
		}
		return ""
	}
	mux := adminserver.Handler(metrics, ready)
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(k.status(time.Now())) // fails only where the client is gone
	})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return adminserver.Serve(ctx, s.admin, mux, adminserver.Access{}) })
	g.Go(func() error { return adminserver.Serve(ctx, s.metrics, adminserver.Handler(metrics, ready), s.access) })
	if own := s.access.Certificate; own != nil {
		g.Go(func() error { return own.Run(ctx) })
	}
	return g.Wait()
}

// newDiscoveryRegistry returns the metrics of discovery and of its process.
func newDiscoveryRegistry(k *keeper) *prometheus.Registry {
	out := adminserver.NewRegistry()
	out.MustRegister(discovery.NewCollector(func() discovery.Metrics {
		s := k.status(time.Now())
		return discovery.Metrics{Pods: s.counts, Faults: len(s.Faults), Writes: s.writes}
	}))
	return out
}

// metricsAccess returns who may scrape --metrics: on loopback everyone, elsewhere operators. The certificate
// is that of the control plane beside this process, from the same fleet file.
func (d *discoverFlags) metricsAccess(log *slog.Logger) (adminserver.Access, error) {
	_, base, err := d.file.ReadBase()
	if err != nil {
		return adminserver.Access{}, err
	}
	own, err := controld.OwnCertificate(wiring.Fleet{Fleet: base, Dir: filepath.Dir(d.file.Base)}, log)
	return adminserver.NewAccess(base, own), err
}
