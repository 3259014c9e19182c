// Command cascade runs and inspects a length-routed fleet of LLM replicas.
//
// Every daemon of a fleet is a subcommand of this one binary; "cascade up"
// runs them all in one process. The subcommands only translate flags and the
// fleet file into component Configs, connect the components and run them:
// decisions are made in packages below.
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

// runMain runs the process's command line until it is done or signalled. A
// second signal ends the process at once.
func runMain() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	return run(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

// run executes a command line and returns its exit code: 0 for success and for a clean stop by
// signal, 2 for a wrong command line, 3 if this host lacks the device that a check needs, 1 for
// other errors.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	s := &settings{stdout: stdout, stderr: stderr}
	defer s.closeLog()
	root := newRoot(s)
	root.SetArgs(args)
	stopHangups := func() {}
	defer func() { stopHangups() }()
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		log, err := s.logger()
		if _, ok := c.Annotations[daemonMark]; ok && err == nil {
			stopHangups = ignoreHangups(log)
			context.AfterFunc(ctx, func() { notifySystemd(log, systemdStopping) })
		}
		return err
	}
	err := root.ExecuteContext(ctx)
	if err == nil || ctx.Err() != nil && onlyCanceled(err) {
		return 0
	}
	s.announce(slog.LevelError, "cascade: %v", err)
	var usage *usageError
	if errors.As(err, &usage) {
		fmt.Fprintf(stderr, "Run \"%s --help\" for its arguments and flags.\n", usage.command)
		return 2
	}
	var absent *absentError
	if errors.As(err, &absent) {
		return 3
	}
	return 1
}

// onlyCanceled reports whether an error consists only of canceled contexts.
func onlyCanceled(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			if !onlyCanceled(e) {
				return false
			}
		}
		return true
	}
	return errors.Is(err, context.Canceled)
}

// settings are the flags that every command has.
type settings struct {
	json      bool
	logLevel  string
	logFormat string
	stdout    io.Writer
	stderr    io.Writer

	log     *slog.Logger      // nil before the first call of logger
	limiter *loglimit.Handler // of log
}

func newRoot(s *settings) *cobra.Command {
	root := &cobra.Command{
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
  cascade report                   the paper's evaluation, simulated, as one HTML page
  cascade devices                  devices of this host, and the transports of KV blocks
  cascade policy new NAME          start a policy of your own, in Go, C or Rego

In production each component is a process of its own, from one fleet file:

  cascade control   -c fleet.yaml                 the control plane (xDS server, planner)
  cascade migrator  -c fleet.yaml --replica r0    beside each engine
  cascade envoy-bootstrap -c fleet.yaml           a bootstrap for your Envoy
  cascade attach    -c fleet.yaml --to envoy      or additions to an existing Envoy, mesh or gRPC client
  cascade proxy     -c fleet.yaml                 or the embedded proxy instead of Envoy
  cascade epp       -c fleet.yaml                 or an endpoint picker for an inference gateway`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version(),
	}
	group(root)
	root.SetOut(s.stdout)
	root.SetErr(s.stderr)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &usageError{command: c.CommandPath(), err: err}
	})
	root.PersistentFlags().BoolVar(&s.json, "json", false, "print machine-readable JSON instead of text")
	root.PersistentFlags().StringVar(&s.logLevel, "log", "warn", "log level on standard error: debug, info, warn or error")
	root.PersistentFlags().StringVar(&s.logFormat, "log-format", "text", "format of the log lines: text or json")
	completeFrom(root, "log-format", []string{"text", "json"})
	root.AddCommand(commands(s)...)
	return root
}

// version returns the module's version as the Go toolchain recorded it.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "devel"
}
