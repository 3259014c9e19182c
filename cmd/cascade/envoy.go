package main

import (
	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// newEnvoyBootstrap is "cascade envoy-bootstrap": what an Envoy must be told.
func newEnvoyBootstrap(s *settings) *cobra.Command {
	file, b := &fleetFile{}, &resources.BootstrapConfig{}
	c := &cobra.Command{
		Use:   "envoy-bootstrap -c FILE",
		Short: "Print a bootstrap for your Envoy; everything else comes over xDS",
		Long: `Envoy-bootstrap prints the static part of an Envoy's configuration: its name, its
admin page, and where the control plane is. Listeners, routes, clusters and endpoints
come over one delta xDS stream. The output is JSON, which "envoy -c" reads. With tls
in the fleet file it names the same certificate files by their absolute paths.`,
		Example: `  cascade envoy-bootstrap -c fleet.yaml > bootstrap.json
  envoy -c bootstrap.json
  cascade envoy-bootstrap -c fleet.yaml --node-id edge-1 --control 10.0.0.5:18000 --zone rack-4`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			fleet, err := file.load(cmd)
			if err != nil {
				return err
			}
			out, err := fleet.Bootstrap(*b)
			if err != nil {
				return err
			}
			_, err = s.stdout.Write(out)
			return err
		},
	}
	file.flag(c, "fleet file")
	f := c.Flags()
	f.StringVar(&b.NodeID, "node-id", defaultNodeID("envoy"), "name of this Envoy; every node of a fleet needs one of its own")
	f.StringVar(&b.Admin, "admin", "127.0.0.1:9901", "IP:port of Envoy's admin page")
	f.StringVar(&b.XDS, "control", "", "IP:port of the control plane, where it is not control.listen of the file")
	f.StringVar(&b.Zone, "zone", "", "machine or zone that this Envoy runs in, for its locality")
	f.Lookup("node-id").DefValue = "envoy@<host name>"
	return c
}
