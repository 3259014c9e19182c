// Command cascade-kube is the part of Cascade that speaks to the Kubernetes API server. It is
// a binary of its own, so that the command cascade neither contains nor compiles a Kubernetes
// client.
package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
)

func main() { os.Exit(cli.Main(run)) }

// run executes a command line and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	a := &cli.App{Stdout: stdout, Stderr: stderr}
	return a.Run(ctx, newRoot(a), args)
}

func newRoot(a *cli.App) *cobra.Command {
	return a.NewRoot(&cobra.Command{
		Use:   "cascade-kube",
		Short: "Cascade on Kubernetes: what needs the API server",
		Long: `Cascade-kube has those parts of Cascade that read and write objects of Kubernetes. All
others are subcommands of cascade, and run in a cluster as they do elsewhere.`,
	}, cli.Daemon(newControl(a)), cli.Daemon(newDiscover(a)), cli.Daemon(newEPP(a)))
}
