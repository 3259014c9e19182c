// Command cascade-lab measures Cascade, and compares it with what others run. It is a module of its own: nothing that
// only a measurement needs is in the product's go.mod or in its binaries.
//
// It imports Cascade's public packages and cmd/internal. Its own packages lie under internal.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/mutate"
	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/routerbench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run runs a command line, and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot(&settings{stdout: stdout, stderr: stderr})
	root.SetArgs(args)
	root.SetOut(stdout)
	err := root.ExecuteContext(ctx)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	fmt.Fprintln(stderr, "cascade-lab:", err)
	var absent *absentError
	if errors.As(err, &absent) {
		return 3
	}
	return 1
}

// settings are what every command has.
type settings struct {
	json           bool
	stdout, stderr io.Writer
}

// print writes v as JSON.
func (s *settings) print(v any) error {
	e := json.NewEncoder(s.stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// newRoot is "cascade-lab".
func newRoot(s *settings) *cobra.Command {
	root := &cobra.Command{
		Use: "cascade-lab", Short: "Measure Cascade, and compare it with what others run",
		SilenceErrors: true, SilenceUsage: true, CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.PersistentFlags().BoolVar(&s.json, "json", false, "print JSON")
	root.AddCommand(
		newReport(s), newCheck(s), newHold(s),
		withFlagSet("routers", "Replay the same requests through Cascade and through other routers, and compare", routerbench.Run),
		withFlagSet("mutate", "Change packages in one place at a time: does a test fail?", mutate.Run),
	)
	return root
}

// withFlagSet returns a command that parses its own flags.
func withFlagSet(name, short string, run func(context.Context, []string) error) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: short, DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error { return run(cmd.Context(), args) },
	}
}
