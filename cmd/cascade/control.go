package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/cmd/wire"
	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// newControl is "cascade control": the control plane.
func newControl(s *settings) *cobra.Command {
	file := &fleetFile{}
	c := &cobra.Command{
		Use:   "control -c FILE",
		Short: "Run the control plane: planner, xDS server, load reports",
		Long: `Control plans the stages of a fleet from what its migrators report, and pushes them
to every Envoy, embedded proxy and gRPC client over xDS. Nothing passes through it:
while it is away, the last plan goes on routing.

The fleet file is watched. Replicas that are added, removed or marked "drain: true"
are taken over at once; a file with an error is refused, with the error logged, and
the last good one stays in force. Other changes need a restart, which is harmless:
with "state" set, the plan and the counters are kept.`,
		Example: `  cascade control -c fleet.yaml
  cascade status                      # who serves what, and why
  curl 127.0.0.1:18001/readyz         # is the first plan out?`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			fleet, err := file.load(cmd)
			if err != nil {
				return err
			}
			return s.runControl(cmd.Context(), fleet, file.path)
		},
	}
	file.flag(c, "fleet file; watched for changes")
	return c
}

func (s *settings) runControl(ctx context.Context, fleet wire.Fleet, path string) error {
	m, err := s.member(fleet, component{role: identity.Control}, "")
	if err != nil {
		return err
	}
	defer m.id.close()
	cc, err := fleet.Control(m.log)
	if err != nil {
		return err
	}
	cc.TLS, cc.TrustDomain = m.id.Server("h2"), fleet.Fleet.TLS.TrustDomain
	edge, err := fleet.Edge(m.log)
	if err != nil {
		return err
	}
	if edge != nil {
		cc.Edge = edge.Certificate()
	}
	c, err := control.New(cc)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.stderr, "control plane of %d replicas: xDS and load reports on %s, http://%s/status tells its state\n",
		len(fleet.Fleet.Replicas), c.Addr(), c.AdminAddr())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Run(ctx) })
	if edge != nil {
		g.Go(func() error {
			return edge.Run(ctx, func(cert *resources.Certificate) {
				if err := c.SetEdge(cert); err != nil {
					m.log.Error("the edge's certificate is not published", "error", err)
				}
			})
		})
	}
	g.Go(func() error {
		return watch(ctx, path, fleet, m.log, func(f wire.Fleet) error { return c.SetReplicas(f.Registry()) })
	})
	return g.Wait()
}
