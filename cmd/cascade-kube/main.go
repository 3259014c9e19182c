// Command cascade-kube is the part of Cascade that speaks to the Kubernetes API server. It is
// a binary of its own, so that the command cascade neither contains nor compiles a Kubernetes
// client.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/loglimit"
)

func main() {
	os.Exit(runMain())
}

// runMain runs the process's command line until it is done or signalled. A second signal ends
// the process at once.
func runMain() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	return run(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

// run executes a command line and returns its exit code: 0 for success and for a clean stop by
// signal, 2 for a wrong command line, 1 for other errors.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	s := &settings{stdout: stdout, stderr: stderr}
	defer s.close()
	root := newRoot(s)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil || ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return 0
	}
	fmt.Fprintf(stderr, "cascade-kube: %v\n", err)
	var usage *usageError
	if errors.As(err, &usage) {
		fmt.Fprintf(stderr, "Run \"%s --help\" for its arguments and flags.\n", usage.command)
		return 2
	}
	return 1
}

func newRoot(s *settings) *cobra.Command {
	root := &cobra.Command{
		Use:   "cascade-kube",
		Short: "Cascade on Kubernetes: what needs the API server",
		Long: `Cascade-kube has those parts of Cascade that read and write objects of Kubernetes. All
others are subcommands of cascade, and run in a cluster as they do elsewhere.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version(),
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return &usageError{c.CommandPath(), fmt.Errorf("unknown command %q for %q", args[0], c.CommandPath())}
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &usageError{c.CommandPath(), err}
	})
	root.PersistentFlags().StringVar(&s.level, "log", "warn", "log level on standard error: debug, info, warn or error")
	root.PersistentFlags().StringVar(&s.format, "log-format", "text", "format of the log lines: text or json")
	root.AddCommand(commands(s)...)
	return root
}

// commands lists every subcommand, in the order of the help.
func commands(s *settings) []*cobra.Command {
	return []*cobra.Command{newControl(s), newRepair(s), newDiscover(s), newEPP(s), newReplica()}
}

// usageError is an invalid command line.
type usageError struct {
	command string // the command whose --help the message names
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// settings are the flags that every command has.
type settings struct {
	level, format  string
	stdout, stderr io.Writer
	limiter        *loglimit.Handler // of the logger; nil before the first call of logger
}

// logger returns the process's logger, as --log and --log-format ask for.
func (s *settings) logger() (*slog.Logger, error) {
	if s.limiter != nil {
		return slog.New(s.limiter), nil
	}
	var err error
	if s.limiter, err = loglimit.Open(s.stderr, s.level, s.format); err != nil {
		return nil, &usageError{"cascade-kube", err}
	}
	return slog.New(s.limiter), nil
}

// close reports the events that were too frequent to be logged.
func (s *settings) close() {
	if s.limiter != nil {
		s.limiter.Close()
	}
}

// version returns the module's version as the Go toolchain recorded it.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "devel"
}
