package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// UsageError is an invalid command line.
type UsageError struct {
	Command string // the command whose --help the message names
	err     error
}

// Error implements error.
func (e *UsageError) Error() string { return e.err.Error() }

// Unwrap returns the reason.
func (e *UsageError) Unwrap() error { return e.err }

// Usagef returns a UsageError about a command.
func Usagef(c *cobra.Command, format string, args ...any) error {
	return &UsageError{Command: c.CommandPath(), err: fmt.Errorf(format, args...)}
}

// ExactArgs requires n arguments. The usage error names the one that is too many, or those that the
// command takes.
func ExactArgs(n int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) > n {
			return Usagef(c, "unexpected argument %q", args[n])
		}
		if len(args) < n {
			_, names, _ := strings.Cut(c.Use, " ")
			return Usagef(c, "an argument is missing: %s %s", c.CommandPath(), names)
		}
		return nil
	}
}

// AtMost allows up to n arguments.
func AtMost(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) > n {
			return Usagef(c, "give at most %d %s", n, what)
		}
		return nil
	}
}

// ExcludeFlags refuses two of the flags on one command line.
func ExcludeFlags(c *cobra.Command, names ...string) error {
	first := ""
	for _, name := range names {
		switch {
		case !c.Flags().Changed(name):
		case first != "":
			return Usagef(c, "--%s and --%s exclude each other", first, name)
		default:
			first = name
		}
	}
	return nil
}

// RequireFlag refuses flags that mean nothing without another one, unless that is set.
func RequireFlag(c *cobra.Command, required string, names ...string) error {
	if c.Flags().Changed(required) {
		return nil
	}
	for _, name := range names {
		if c.Flags().Changed(name) {
			return Usagef(c, "--%s needs --%s", name, required)
		}
	}
	return nil
}

// suggestDistance is how many edits a mistyped command may differ from a
// suggested one.
const suggestDistance = 2

// Group makes c a command that only has subcommands: without arguments it prints its help, and an
// unknown argument is a usage error that suggests the nearest subcommands.
func Group(c *cobra.Command) *cobra.Command {
	c.Args = cobra.ArbitraryArgs
	c.SuggestionsMinimumDistance = suggestDistance
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Help()
		}
		near := c.SuggestionsFor(args[0])
		if len(near) == 0 {
			return Usagef(c, "unknown command %q for %q", args[0], c.CommandPath())
		}
		return Usagef(c, "unknown command %q for %q; did you mean %s?", args[0], c.CommandPath(), strings.Join(near, " or "))
	}
	return c
}

// CompleteFrom makes a flag complete from a fixed list.
func CompleteFrom(c *cobra.Command, flag string, words []string) {
	// The only error is a flag that does not exist.
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// Plural returns a count with its noun.
func Plural(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}
