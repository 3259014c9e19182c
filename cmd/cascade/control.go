package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/headroom"
	"github.com/cascadeinfer/cascade/cmd/internal/policyhost"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// newControl is "cascade control": the control plane.
func newControl(s *settings) *cobra.Command {
	file, own, metrics := &fleetFile{}, &config.Control{}, ""
	c := &cobra.Command{
		Use:   "control -c FILE",
		Short: "Run the control plane: planner, xDS server, load reports",
		Long: `Control plans the stages of a fleet from what its migrators report, and pushes them
to every Envoy, embedded proxy and gRPC client over xDS. No request passes
through it: while it is down, proxies route by the last plan.

The fleet file is watched. Replicas that are added, removed or marked "drain: true"
take effect at once; a file with an error is rejected, the error is logged, and the
last valid file stays in force. A file that removes more than half of a model's replicas
waits for "cascade config confirm". Other changes need a restart, which affects no request:
with "state" set, the plan and the counters are kept.

With "control.peers" set, several control planes share "state", a directory of their
host or etcd, and serve the same resources. One of them leads and plans; if it fails, another one leads within
5 s, and proxies and migrators continue with those that are left. All have the same fleet file, whose
control.listen and control.peers name them all; each is started with a --listen and an
--admin of its own, and with a --name, or else its name is its host and port. With
tls.trust_domain, {name} in the paths of its certificate is that name.`,
		Example: `  cascade control -c fleet.yaml
  cascade control -c fleet.yaml --listen 127.0.0.1:18100 --admin 127.0.0.1:18101  # one more
  cascade status                      # who serves what, and why
  curl 127.0.0.1:18001/readyz         # is the first plan out?`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			fleet, err := file.load(cmd)
			if err != nil {
				return err
			}
			return s.runControl(cmd.Context(), fleet, *own, file.path, metrics)
		},
	}
	file.flag(c, "fleet file; watched for changes")
	f := c.Flags()
	f.StringVar(&own.Listen, "listen", "", "host:port of this control plane's xDS and load reports, where it is not control.listen of the file")
	f.StringVar(&own.Admin, "admin", "", "host:port of this control plane's /status, where it is not control.admin of the file")
	metricsFlag(c, &metrics)
	f.StringVar(&own.Name, "name", "", "name of this control plane among several, where it is not control.name of the file")
	return c
}

// runControl runs a control plane. The addresses and name of own override those of the file unless
// they are empty. metrics is an address for metrics alone; "" is none.
func (s *settings) runControl(ctx context.Context, file wiring.Fleet, own config.Control, path, metrics string) error {
	fleet := file
	if own.Listen != "" && own.Listen != file.Fleet.Control.Listen && len(file.Fleet.Control.Peers) > 0 {
		fleet.Fleet.Control.Name = "" // the name in the file belongs to control.listen
	}
	fleet.Fleet.Control.Listen = cmp.Or(own.Listen, fleet.Fleet.Control.Listen)
	fleet.Fleet.Control.Admin = cmp.Or(own.Admin, fleet.Fleet.Control.Admin)
	fleet.Fleet.Control.Name = cmp.Or(own.Name, fleet.Fleet.Control.Name)
	if errs := fleet.Fleet.Validate(); len(errs) > 0 {
		return fmt.Errorf("%s with --listen, --admin and --name: %w", path, errs[0])
	}
	m, err := s.newControlConns(fleet, controlComponent(fleet, fleet.ControlCertificate()), "")
	if err != nil {
		return err
	}
	defer m.close()
	cc, err := fleet.Control(m.log)
	if err != nil {
		return err
	}
	if closer, ok := cc.Store.(io.Closer); ok {
		defer closer.Close()
	}
	cc.TLS, cc.TrustDomain = m.certs.ServerConfig("h2"), fleet.Fleet.TLS.TrustDomain
	cc.FleetDigest = file.Digest()
	edge, err := fleet.DownstreamCertificate(m.log)
	if err != nil {
		return err
	}
	if edge != nil {
		cc.EdgeCertificate = edge.Certificate()
	}
	plane, err := policyhost.JoinPlane(ctx, &fleet, &cc, m.log)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", cc.Listen)
	if err != nil {
		return err
	}
	scraped, err := listenMetrics(metrics)
	if err != nil {
		return err
	}
	room := headroom.New(headroom.Read(), m.log)
	cc.Listener = room.Listener(l)
	cc.Collectors = []prometheus.Collector{room, certs.Expiries{Own: m.certs, Edge: edge}}
	cc.Problems = problems(room, certs.Expiries{Own: m.certs, Edge: edge})
	c, err := control.New(cc)
	if err != nil {
		return err
	}
	s.announce(slog.LevelInfo, "control plane of %d replicas: xDS and load reports on %s, console at http://%s/",
		len(fleet.Fleet.Replicas), c.Addr(), c.AdminAddr())
	notifySystemd(m.log, systemdReady)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error { return plane.Run(ctx) })
	g.Go(func() error {
		return serveAdmin(ctx, scraped, c.MetricsHandler(), adminAccess{fleet.Fleet.Control.AdminHosts, m.certs, fleet.Fleet.TLS.TrustDomain})
	})
	if edge != nil {
		g.Go(func() error {
			return edge.Run(ctx, func(cert *resources.Certificate) {
				if err := c.SetEdgeCertificate(cert); err != nil {
					m.log.Error("publishing the downstream certificate failed", "error", err)
				}
			})
		})
	}
	g.Go(func() error {
		return watch(ctx, path, file, m.log, func(f wiring.Fleet) error { return c.SetReplicas(f.Registry()) },
			func(f wiring.Fleet, err error) { c.SetFleetFile(f.Digest(), err) })
	})
	return g.Wait()
}
