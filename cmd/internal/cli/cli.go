// Package cli is what the command lines of Cascade's programs have in common: flags, logs, output, usage errors,
// exit codes and the version.
//
// A program embeds an App in the state that its commands share, makes its root command with App.NewRoot, and runs it
// with Main. Commands print through the App, so that --json and --log-format mean the same everywhere, and return
// errors made by Usagef for wrong command lines.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/loglimit"
	"github.com/cascadeinfer/cascade/engine/report"
)

// App is the state of a program that all its commands share. Stdout and Stderr are required.
type App struct {
	Stdout, Stderr      io.Writer
	JSON                bool   // --json
	LogLevel, LogFormat string // --log and --log-format

	program     string
	log         *slog.Logger      // nil before the first call of Logger
	limiter     *loglimit.Handler // of log
	stopHangups func()            // of a daemon; nil for other commands
}

// Main runs the process's command line until it is done or signalled, and returns the exit code. A second signal ends
// the process at once. run is a call of App.Run.
func Main(run func(ctx context.Context, args []string, stdout, stderr io.Writer) int) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	return run(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

// NewRoot makes c the root command of a program: without arguments it prints its help. commands are its subcommands.
func (a *App) NewRoot(c *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	Group(c)
	a.program = c.Name()
	c.SilenceUsage, c.SilenceErrors, c.Version = true, true, Version
	c.SetOut(a.Stdout)
	c.SetErr(a.Stderr)
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return &UsageError{Command: c.CommandPath(), err: err} })
	f := c.PersistentFlags()
	f.BoolVar(&a.JSON, "json", false, "print machine-readable JSON instead of text")
	f.StringVar(&a.LogLevel, "log", "warn", "log level on standard error: debug, info, warn or error")
	f.StringVar(&a.LogFormat, "log-format", "text", "format of the log lines: text or json")
	CompleteFrom(c, "log-format", []string{"text", "json"})
	c.AddCommand(commands...)
	c.AddCommand(newVersion(a))
	return c
}

// Run executes a command line and returns its exit code: 0 for success and for a clean stop by signal, 2 for a wrong
// command line, 1 for other errors.
func (a *App) Run(ctx context.Context, root *cobra.Command, args []string) int {
	defer a.close()
	root.SetArgs(args)
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		log, err := a.Logger()
		if _, ok := c.Annotations[DaemonMark]; ok && err == nil {
			a.stopHangups = ignoreHangups(log)
			context.AfterFunc(ctx, func() { NotifySystemd(log, SystemdStopping) })
		}
		return err
	}
	err := root.ExecuteContext(ctx)
	if err == nil || ctx.Err() != nil && onlyCanceled(err) {
		return 0
	}
	a.Announce(slog.LevelError, "%s: %v", a.program, err)
	var usage *UsageError
	if errors.As(err, &usage) {
		fmt.Fprintf(a.Stderr, "Run \"%s --help\" for its arguments and flags.\n", usage.Command)
		return 2
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

// Logger returns the process's logger, as --log and --log-format ask for.
func (a *App) Logger() (*slog.Logger, error) {
	if a.log != nil {
		return a.log, nil
	}
	var err error
	if a.limiter, err = loglimit.Open(a.Stderr, a.LogLevel, a.LogFormat); err != nil {
		return nil, &UsageError{Command: a.program, err: err}
	}
	a.log = slog.New(a.limiter)
	return a.log, nil
}

// Announce writes a line to standard error, whatever --log says.
func (a *App) Announce(level slog.Level, format string, args ...any) {
	if a.LogFormat == "json" {
		slog.New(slog.NewJSONHandler(a.Stderr, nil)).Log(context.Background(), level, fmt.Sprintf(format, args...))
		return
	}
	fmt.Fprintf(a.Stderr, format+"\n", args...)
}

// AnnounceReady is Announce for a daemon that serves, and notifies systemd.
func (a *App) AnnounceReady(line string) {
	a.Announce(slog.LevelInfo, "%s", line)
	NotifySystemd(a.log, SystemdReady)
}

// close reports the events that were too frequent to be logged.
func (a *App) close() {
	if a.stopHangups != nil {
		a.stopHangups()
	}
	if a.limiter != nil {
		a.limiter.Close()
	}
}

// Print writes v as indented JSON.
func (a *App) Print(v any) error {
	e := json.NewEncoder(a.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// PrintTable writes v as JSON with --json, and the table without it.
func (a *App) PrintTable(v any, t report.Table) error {
	if a.JSON {
		return a.Print(v)
	}
	return t.Text(a.Stdout)
}

// PrintLine writes v as JSON with --json, and a line of text without it.
func (a *App) PrintLine(v any, format string, args ...any) error {
	if a.JSON {
		return a.Print(v)
	}
	_, err := fmt.Fprintf(a.Stdout, format+"\n", args...)
	return err
}
