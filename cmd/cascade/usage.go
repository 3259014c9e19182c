package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
)

// usageError is an invalid command line.
type usageError struct {
	command string // the command whose --help the message names
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usageErrorf returns a usageError about a command.
func usageErrorf(c *cobra.Command, format string, args ...any) error {
	return &usageError{command: c.CommandPath(), err: fmt.Errorf(format, args...)}
}

// exactArgs requires n arguments. The usage error names the one that is too many, or those that the
// command takes.
func exactArgs(n int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) > n {
			return usageErrorf(c, "unexpected argument %q", args[n])
		}
		if len(args) < n {
			_, names, _ := strings.Cut(c.Use, " ")
			return usageErrorf(c, "an argument is missing: %s %s", c.CommandPath(), names)
		}
		return nil
	}
}

// nameFlag returns an error about the one model that flags describe, with the flag in place of the field.
func nameFlag(err error) error {
	if bad := (*config.FieldError)(nil); errors.As(err, &bad) {
		if flag, ok := strings.CutPrefix(bad.Path, "models[0]."); ok {
			return fmt.Errorf("--%s: %s", flag, bad.Msg)
		}
	}
	return err
}

// suggestDistance is how many edits a mistyped command may differ from a
// suggested one.
const suggestDistance = 2

// group makes c a command that only has subcommands: without arguments it prints its help, and an
// unknown argument is a usage error that suggests the nearest subcommands.
func group(c *cobra.Command) *cobra.Command {
	c.Args = cobra.ArbitraryArgs
	c.SuggestionsMinimumDistance = suggestDistance
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Help()
		}
		near := c.SuggestionsFor(args[0])
		if len(near) == 0 {
			return usageErrorf(c, "unknown command %q for %q", args[0], c.CommandPath())
		}
		return usageErrorf(c, "unknown command %q for %q; did you mean %s?", args[0], c.CommandPath(), strings.Join(near, " or "))
	}
	return c
}
