// Package daemon has what the process of every daemon of Cascade sets up: certificates that rotate, traces, room for its
// control path, metrics, admin servers, connections to the control planes, and upgrades that cut no stream.
//
// New reads the certificates and follows their files until Close. The fields of a Daemon go into the Configs of the
// components that the daemon runs; Serve and ServeMetrics are its admin servers, Begin joins an upgrade. The package
// decides nothing.
package daemon

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/headroom"
	"github.com/cascadeinfer/cascade/cmd/internal/tracing"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// Config configures a Daemon. Log is required.
type Config struct {
	Log *slog.Logger
	// Fleet is the fleet file, whose tls section has the certificate of Role and Name, and whose control section says who
	// may use admin servers. The zero value has neither.
	Fleet wiring.Fleet
	Role  identity.Role
	Name  string
	// Certs is the certificate where it is not that of the fleet file.
	Certs *certs.Provider
	// Edge reads the certificate that proxies present to clients, too.
	Edge bool
	// Replica names the replica of a migrator in its traces.
	Replica string
}

// Daemon is the process of a daemon.
type Daemon struct {
	Log     *slog.Logger
	Certs   *certs.Provider   // nil: plain text
	Edge    *certs.Downstream // nil: clients connect in plain text
	Room    *headroom.Monitor
	Metrics *prometheus.Registry

	fleet wiring.Fleet
	spans *tracing.Tracing
	close func()
}

// New returns a Daemon, which the caller closes. It connects to nothing.
func New(ctx context.Context, c Config) (*Daemon, error) {
	d := &Daemon{Log: c.Log, Certs: c.Certs, Metrics: adminserver.NewRegistry(), fleet: c.Fleet}
	var err error
	if d.Certs == nil {
		if d.Certs, err = ownCertificate(c); err != nil {
			return nil, err
		}
	}
	if c.Edge {
		if d.Edge, err = c.Fleet.DownstreamCertificate(c.Log); err != nil {
			return nil, err
		}
	}
	if d.spans, err = tracing.New(ctx, tracing.Config{Replica: c.Replica, Version: cli.Version, Logger: c.Log}); err != nil {
		return nil, err
	}
	d.Room = headroom.New(headroom.Read(), c.Log)
	d.Metrics.MustRegister(d.Collectors()...)
	watching, stop := context.WithCancel(context.Background())
	var watch sync.WaitGroup
	watch.Go(func() { _ = d.Certs.Run(watching) }) // Run returns no errors
	d.close = func() { stop(); watch.Wait() }
	return d, nil
}

// ownCertificate returns the certificate of a daemon in the tls section of the fleet file; nil if it has none.
func ownCertificate(c Config) (*certs.Provider, error) {
	if c.Role == identity.Control && !c.Fleet.Fleet.TLS.PerName() {
		c.Name = "" // any control plane's certificate
	}
	files := c.Fleet.TLS(c.Role, c.Name)
	if files.Cert == "" {
		return nil, nil
	}
	return certs.New(certs.Config{Cert: files.Cert, Key: files.Key, CA: files.CA, Self: files.ExpectedIdentity(c.Role, c.Name), Logger: c.Log})
}

// Close exports the last spans and stops to follow files.
func (d *Daemon) Close() {
	d.spans.Close()
	d.close()
}

// Tracer returns the tracer of a part of the daemon; nil without traces.
func (d *Daemon) Tracer(part string) trace.Tracer { return d.spans.Tracer(part) }

// Collectors returns the collectors of what the daemon has. They are registered in Metrics.
func (d *Daemon) Collectors() []prometheus.Collector {
	return []prometheus.Collector{d.Room, certs.Expiries{Own: d.Certs, Edge: d.Edge}}
}

// Problems returns what the daemon lacks or will lack soon, which "cascade status" shows: descriptors, memory and
// certificates.
func (d *Daemon) Problems() []loadreport.Problem {
	return append(d.Room.Problems(), certs.Expiries{Own: d.Certs, Edge: d.Edge}.Problems(time.Now())...)
}

// Serve serves a handler on an admin listener until ctx ends; a nil listener serves nothing.
func (d *Daemon) Serve(ctx context.Context, l net.Listener, h http.Handler) error {
	return adminserver.Serve(ctx, l, h, adminserver.NewAccess(d.fleet.Fleet, d.Certs))
}

// ServeMetrics is Serve with /metrics, /healthz and /readyz. ready returns why the daemon cannot accept work; "" if it can.
func (d *Daemon) ServeMetrics(ctx context.Context, l net.Listener, ready func() string) error {
	return d.Serve(ctx, l, adminserver.Handler(d.Metrics, ready))
}
