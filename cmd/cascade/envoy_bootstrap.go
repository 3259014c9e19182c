package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// newEnvoyBootstrap is "cascade envoy-bootstrap": the static configuration of
// an Envoy.
func newEnvoyBootstrap(s *settings) *cobra.Command {
	file, b, dir := &fleetFile{}, &resources.BootstrapConfig{}, ""
	c := &cobra.Command{
		Use:   "envoy-bootstrap -c FILE",
		Short: "Print a bootstrap for your Envoy; everything else comes over xDS",
		Long: `Envoy-bootstrap prints the static part of an Envoy's configuration: its name, its
admin server, and where the control plane is. Listeners, routes, clusters and endpoints
come over one delta xDS stream. The output is JSON, which "envoy -c" reads. With tls
in the fleet file it names the same certificate files by their absolute paths, and
with tls.trust_domain it requires the control plane's identity, spiffe://.../control/*.

With --out, three files are written into a directory instead, through which Envoy
watches the certificates: they then rotate without a restart, when new ones are renamed
to their paths. With tls that directory is tls.envoy_dir, because Envoy presents the
same certificate to migrators. Only with "requests" in tls.plaintext, where it does not, may
the output be printed; Envoy then reads the certificates once.

Envoy's admin server has no authentication: every user of the host can change Envoy by
it, and end it. With --admin unix:/PATH only Envoy's own user can.`,
		Example: `  cascade envoy-bootstrap -c fleet.yaml > bootstrap.json
  envoy -c bootstrap.json
  cascade envoy-bootstrap -c fleet.yaml --node-id edge-1 --out /etc/envoy && envoy -c /etc/envoy/bootstrap.json
  cascade envoy-bootstrap -c fleet.yaml --node-id edge-1 --control 10.0.0.5:18000 --zone rack-4`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			fleet, err := file.load(cmd)
			if err != nil {
				return err
			}
			if dir != "" {
				return s.writeBootstrap(fleet, *b, dir)
			}
			out, err := fleet.Bootstrap(*b)
			if err != nil {
				return err
			}
			_, err = s.Stdout.Write(out)
			return err
		},
	}
	file.flag(c, "fleet file")
	f := c.Flags()
	f.StringVar(&b.NodeID, "node-id", wiring.DefaultNodeID("envoy"), "name of this Envoy; every node of a fleet needs one of its own")
	f.StringVar(&b.Admin, "admin", "127.0.0.1:9901", "IP:port of Envoy's admin server, or unix:/PATH")
	f.StringVar(&b.ControlPlane, "control", "", "IP:port of the control plane, where they are not control.listen and control.peers of the file")
	f.StringVar(&b.Zone, "zone", "", "host or zone that this Envoy runs in, for its locality")
	f.StringVar(&dir, "out", "", "directory to write bootstrap.json and its SDS files into, instead of printing")
	f.Lookup("node-id").DefValue = "envoy@<host name>"
	return c
}

// writeBootstrap writes the files of a bootstrap, and prints their paths.
func (s *settings) writeBootstrap(fleet wiring.Fleet, b resources.BootstrapConfig, dir string) error {
	files, err := fleet.BootstrapFiles(b, dir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	paths := make([]string, 0, len(files))
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(dir, name)
		if err := atomicfile.Write(path, files[name], 0o644); err != nil { // a running Envoy may read it
			return err
		}
		paths = append(paths, path)
	}
	return s.PrintLine(map[string][]string{"files": paths}, "%s", strings.Join(paths, "\n"))
}
