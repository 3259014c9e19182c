package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/controld"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
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
waits for "cascade config check --confirm". Other changes need a restart, which affects no request:
with "state" set, the plan and the counters are kept.

With "control.peers" set, several control planes share "state", a directory of their
host or etcd (or Kubernetes: see "cascade-kube control"), and serve the same resources.
One of them leads and plans; if it fails, another one leads within 5 s, and proxies and
migrators continue with those that are left. All have the same fleet file, whose
control.listen and control.peers name them all; each is started with a --listen and an
--admin of its own, and with a --name, or else its name is its host and port. With
tls.trust_domain, {name} in the paths of its certificate is that name.`,
		Example: `  cascade control -c fleet.yaml
  cascade control -c fleet.yaml --listen 127.0.0.1:18100 --admin 127.0.0.1:18101  # one more
  cascade status                      # who serves what, and why
  curl 127.0.0.1:18001/readyz         # is the first plan out?`,
		Args: cli.ExactArgs(0),
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
	f.StringVar(&metrics, adminserver.MetricsFlag, "", adminserver.MetricsUsage)
	f.StringVar(&own.Name, "name", "", "name of this control plane among several, where it is not control.name of the file")
	return c
}

// runControl runs a control plane. The addresses and name of own override those of the file unless
// they are empty. metrics is an address for metrics alone; "" is none.
func (s *settings) runControl(ctx context.Context, file wiring.Fleet, own config.Control, path, metrics string) error {
	log, err := s.Logger()
	if err != nil {
		return err
	}
	return controld.Run(ctx, controld.Config{
		Fleet: file, Path: path, Own: own, Metrics: metrics, Logger: log, Started: s.AnnounceReady,
	})
}
