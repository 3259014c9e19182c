// Package controld runs a control plane from the fleet file, as "cascade control" and
// "cascade-kube control" do.
//
// Run connects what decides, in the packages of xds, with the process: listeners, certificates,
// the state, policy modules and the fleet file, which it follows. The package decides nothing.
package controld

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/daemon"
	"github.com/cascadeinfer/cascade/cmd/internal/fleetfile"
	"github.com/cascadeinfer/cascade/cmd/internal/policyhost"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Config configures Run.
type Config struct {
	// Fleet is the fleet file as it was read from Path, which is followed. Required.
	Fleet wiring.Fleet
	Path  string
	// Own has the addresses and the name of this control plane, Listen, Admin and Name, where
	// they are not those of the file; the others are ignored.
	Own config.Control
	// OpenState opens what the control planes share; it returns nil where the fleet has no
	// state. Run closes it. nil means wiring.Fleet.OpenState.
	OpenState func(*wiring.Fleet) (*store.Store, error)
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
	d, err := daemon.New(ctx, daemon.Config{Log: c.Logger, Fleet: fleet, Role: identity.Control, Name: fleet.ControlCertificate(), Edge: true})
	if err != nil {
		return err
	}
	defer d.Close()
	cc, err := c.controlConfig(fleet)
	if err != nil {
		return err
	}
	if cc.Store != nil {
		defer cc.Store.Close()
	}
	cc.TLS, cc.TrustDomain = d.Certs.ServerConfig("h2"), fleet.Fleet.TLS.TrustDomain
	cc.FleetFile = DescribeFile(c.Fleet, nil)
	if d.Edge != nil {
		cc.EdgeCertificate = d.Edge.Certificate()
	}
	plane, err := policyhost.JoinPlane(ctx, &fleet, &cc, c.Logger)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", cc.Listen)
	if err != nil {
		return fmt.Errorf("control.listen: %w", err)
	}
	if cc.AdminListener, err = net.Listen("tcp", cc.Admin); err != nil {
		return errors.Join(fmt.Errorf("control.admin: %w", err), l.Close())
	}
	if cc.Local, err = fleet.ListenLocal(c.Logger); err != nil {
		return errors.Join(err, l.Close(), cc.AdminListener.Close())
	}
	cc.Listener, cc.Collectors, cc.Problems = d.Room.Listener(l), d.Collectors(), d.Problems
	plan, err := control.New(cc)
	if err != nil {
		return err
	}
	c.Started(fmt.Sprintf("control plane of %d replicas: xDS and load reports on %s, console at http://%s/",
		len(fleet.Fleet.Replicas), plan.Addr(), plan.AdminAddr()))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return plan.Run(ctx) })
	g.Go(func() error { return plane.Run(ctx) })
	g.Go(func() error { return d.Serve(ctx, scraped, plan.MetricsHandler()) })
	if d.Edge != nil {
		g.Go(func() error {
			return d.Edge.Run(ctx, func(cert *resources.Certificate) {
				if err := plan.SetEdgeCertificate(cert); err != nil {
					c.Logger.Error("publishing the downstream certificate failed", "error", err)
				}
			})
		})
	}
	g.Go(func() error {
		return fleetfile.Watch(ctx, c.Path, c.Fleet, c.Logger, func(f wiring.Fleet) error { return plan.SetReplicas(f.Registry()) },
			func(f wiring.Fleet, restart []string, err error) { plan.SetFleetFile(DescribeFile(f, restart), err) })
	})
	return g.Wait()
}

// DescribeFile describes a fleet file, so that control planes can compare theirs. restart lists the fields whose
// changes only a restart applies.
func DescribeFile(f wiring.Fleet, restart []string) control.FleetFile {
	return control.FleetFile{Digest: f.Digest(), Fields: f.SharedFields(), Restart: restart}
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

// controlConfig opens the state, and returns the Config of the control plane.
func (c Config) controlConfig(fleet wiring.Fleet) (control.Config, error) {
	open := c.OpenState
	if open == nil {
		open = (*wiring.Fleet).OpenState
	}
	state, err := open(&fleet)
	if err != nil {
		return control.Config{}, err
	}
	return fleet.ControlWith(c.Logger, state)
}
