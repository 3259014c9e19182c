// Package controld runs a control plane from the fleet file, as "cascade control" and
// "cascade-kube control" do.
//
// Run connects what decides, in the packages of xds, with the process: listeners, certificates,
// the state, policy modules and the fleet file, which it follows. The package decides nothing.
package controld

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/fleetfile"
	"github.com/cascadeinfer/cascade/cmd/internal/headroom"
	"github.com/cascadeinfer/cascade/cmd/internal/policyhost"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Config configures Run.
type Config struct {
	// Fleet is the fleet file as it was read from Path, which is followed. Required.
	Fleet wiring.Fleet
	Path  string
	// Own has the addresses and the name of this control plane, Listen, Admin and Name, where
	// they are not those of the file; the others are ignored.
	Own config.Control
	// OpenState opens the state that control planes on several hosts share; nil where the
	// fleet has none. Run closes it. nil means wiring.Fleet.OpenState.
	OpenState func(*wiring.Fleet) (*wiring.SharedState, error)
	// Logger logs events. Required.
	Logger *slog.Logger
	// Started is called once with a line about this control plane, when it listens. Required.
	Started func(line string)
	// Metrics is host:port of one more server of the metrics, as of the flag adminserver.MetricsFlag; "": none.
	Metrics string
}

// Run runs a control plane until ctx ends. It returns an error if it cannot start, or if a
// listener fails.
func Run(ctx context.Context, c Config) error {
	// First, because the state may be slow to open and a bad address is found at once; connections wait until it serves.
	scraped, err := adminserver.ListenMetrics(c.Metrics, c.Logger)
	if err != nil {
		return err
	}
	if scraped != nil {
		defer scraped.Close()
	}
	fleet, err := c.resolveFleet()
	if err != nil {
		return err
	}
	own, err := OwnCertificate(fleet, c.Logger)
	if err != nil {
		return err
	}
	edge, err := fleet.DownstreamCertificate(c.Logger)
	if err != nil {
		return err
	}
	cc, err := c.controlConfig(ctx, fleet)
	if err != nil {
		return err
	}
	if closer, ok := cc.Store.(io.Closer); ok {
		defer closer.Close()
	}
	cc.TLS, cc.TrustDomain = own.ServerConfig("h2"), fleet.Fleet.TLS.TrustDomain
	cc.FleetDigest = c.Fleet.Digest()
	if edge != nil {
		cc.EdgeCertificate = edge.Certificate()
	}
	plane, err := policyhost.JoinPlane(ctx, &fleet, &cc, c.Logger)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", cc.Listen)
	if err != nil {
		return err
	}
	room, ends := headroom.New(headroom.Read(), c.Logger), certs.Expiries{Own: own, Edge: edge}
	cc.Listener = room.Listener(l)
	cc.Collectors = []prometheus.Collector{room, ends}
	cc.Problems = func() []loadreport.Problem { return append(room.Problems(), ends.Problems(time.Now())...) }
	plan, err := control.New(cc)
	if err != nil {
		return err
	}
	c.Started(fmt.Sprintf("control plane of %d replicas: xDS and load reports on %s, console at http://%s/",
		len(fleet.Fleet.Replicas), plan.Addr(), plan.AdminAddr()))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return plan.Run(ctx) })
	g.Go(func() error { return plane.Run(ctx) })
	g.Go(func() error { return own.Run(ctx) })
	g.Go(func() error {
		return adminserver.Serve(ctx, scraped, plan.MetricsHandler(), adminserver.NewAccess(c.Fleet.Fleet, own))
	})
	if edge != nil {
		g.Go(func() error {
			return edge.Run(ctx, func(cert *resources.Certificate) {
				if err := plan.SetEdgeCertificate(cert); err != nil {
					c.Logger.Error("publishing the downstream certificate failed", "error", err)
				}
			})
		})
	}
	g.Go(func() error {
		return fleetfile.Watch(ctx, c.Path, c.Fleet, c.Logger, func(f wiring.Fleet) error { return plan.SetReplicas(f.Registry()) },
			func(f wiring.Fleet, err error) { plan.SetFleetFile(f.Digest(), err) })
	})
	return g.Wait()
}

// resolveFleet returns the fleet with the addresses and the name of this control plane.
func (c Config) resolveFleet() (wiring.Fleet, error) {
	fleet := c.Fleet
	if c.Own.Listen != "" && c.Own.Listen != c.Fleet.Fleet.Control.Listen && len(c.Fleet.Fleet.Control.Peers) > 0 {
		fleet.Fleet.Control.Name = "" // the name in the file belongs to control.listen
	}
	fleet.Fleet.Control.Listen = cmp.Or(c.Own.Listen, fleet.Fleet.Control.Listen)
	fleet.Fleet.Control.Admin = cmp.Or(c.Own.Admin, fleet.Fleet.Control.Admin)
	fleet.Fleet.Control.Name = cmp.Or(c.Own.Name, fleet.Fleet.Control.Name)
	if errs := fleet.Fleet.Validate(); len(errs) > 0 {
		return fleet, fmt.Errorf("%s with --listen, --admin and --name: %w", c.Path, errs[0])
	}
	return fleet, nil
}

// OwnCertificate returns the certificate of the control plane of a fleet file; nil, for plain text, if the file
// has no TLS. The caller runs it.
func OwnCertificate(fleet wiring.Fleet, log *slog.Logger) (*certs.Provider, error) {
	name := fleet.ControlCertificate()
	if !fleet.Fleet.TLS.PerName() {
		name = "" // any control plane's certificate
	}
	files := fleet.TLS(identity.Control, name)
	if files.Cert == "" {
		return nil, nil
	}
	return certs.New(certs.Config{Cert: files.Cert, Key: files.Key, CA: files.CA, Self: files.ExpectedIdentity(identity.Control, name), Logger: log})
}

// controlConfig opens the state, and returns the Config of the control plane.
func (c Config) controlConfig(ctx context.Context, fleet wiring.Fleet) (control.Config, error) {
	open := c.OpenState
	if open == nil {
		open = (*wiring.Fleet).OpenState
	}
	state, err := open(&fleet)
	if err != nil {
		return control.Config{}, err
	}
	return fleet.ControlWith(ctx, c.Logger, state)
}
