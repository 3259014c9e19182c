// Command cascade runs and inspects a length-routed fleet of LLM replicas.
//
// Every daemon of a fleet is a subcommand of this one binary; "cascade up"
// runs them all in one process. The subcommands only translate flags and the
// fleet file into component Configs, connect the components and run them:
// decisions are made in packages below.
package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
)

func main() { os.Exit(runMain()) }

func runMain() int { return cli.Main(run) }

// run executes a command line and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	s := &settings{cli.App{Stdout: stdout, Stderr: stderr}}
	return s.Run(ctx, newRoot(s), args)
}

// settings is what every command has.
type settings struct{ cli.App }

func newRoot(s *settings) *cobra.Command {
	return s.NewRoot(&cobra.Command{
		Use:   "cascade",
		Short: "Length-aware routing for fleets of LLM replicas",
		Long: `Cascade divides a fleet of LLM replicas into length stages, routes every request
to the stage whose range covers its length, and adapts the stages as the
traffic changes. Any Envoy routes for it, through xDS alone.

  cascade demo                     compare stages with round robin on this machine, in about four minutes
  cascade up                       a whole emulated fleet in one process
  cascade up -c fleet.yaml         the same, as the file describes it
  cascade status                   stages, ranges, replicas, load and ACKs of a running fleet
  cascade top                      the same, live in the terminal
  cascade migrations               requests that migrated between replicas, and their stalls
  cascade drain REPLICA            empty a replica, with no dropped stream
  cascade plan --trace FILE        what stages a trace of your own would get
  cascade sim --trace FILE         routers and Cascade compared on it, in virtual time
  cascade devices                  devices of this host, and the transports of KV blocks
  cascade policy new NAME          start a policy of your own, in Go, C or Rego

In production each component is a process of its own, from one fleet file:

  cascade control   -c fleet.yaml                 the control plane (xDS server, planner)
  cascade migrator  -c fleet.yaml --replica r0    beside each engine
  cascade envoy-bootstrap -c fleet.yaml           a bootstrap for your Envoy
  cascade attach envoy -c fleet.yaml              or additions to an existing Envoy, mesh or gRPC client
  cascade proxy     -c fleet.yaml                 or the embedded proxy instead of Envoy
  cascade epp       -c fleet.yaml                 or an endpoint picker for an inference gateway`,
	},
		cli.Daemon(newUp(s)), newDemo(s), newStatus(s), newTop(s), newMigrations(s), newDrain(s), newPlan(s), newTrace(s), newReplay(s), newSim(s),
		cli.Daemon(newControl(s)), cli.Daemon(newMigrator(s)), cli.Daemon(newProxy(s)), cli.Daemon(newEPP(s)), newEnvoyBootstrap(s), newAttach(s),
		cli.Daemon(newEngine(s)), newConfig(s), newDevices(s), newTLS(s), newPolicy(s), newProfile(s))
}
