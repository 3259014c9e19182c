// Package helppage renders the help of a program's commands as a page of the book's reference.
package helppage

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Generated is what each page of the reference says of itself; its operand is what the page is
// generated from.
const Generated = "*Generated from %s by `make reference`; a test compares the two.*\n\n"

// Render returns the page of a program in Markdown: the title, the intro, the flags that every command
// has, and each command that is not hidden with its description, examples and flags.
func Render(root *cobra.Command, title, intro string) string {
	var out strings.Builder
	fmt.Fprintf(&out, "# %s\n\n"+Generated+"%s\n\n", title, "the help of the commands", intro)
	out.WriteString("Every command has these flags:\n\n" + fenced(root.PersistentFlags().FlagUsages()))
	var write func(c *cobra.Command)
	write = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			return
		}
		fmt.Fprintf(&out, "## %s\n\n%s.\n\n%s", c.CommandPath(), c.Short, fenced(c.UseLine()))
		if c.Long != "" {
			out.WriteString(fenced(c.Long))
		}
		if c.Example != "" {
			out.WriteString("Examples:\n\n" + fenced(c.Example))
		}
		if flags := c.NonInheritedFlags(); c != root && flags.HasAvailableFlags() {
			out.WriteString("Flags:\n\n" + fenced(flags.FlagUsages()))
		}
		for _, sub := range c.Commands() {
			write(sub)
		}
	}
	write(root)
	return strings.TrimRight(out.String(), "\n") + "\n"
}

// fenced returns a text as a block that is not run.
func fenced(text string) string { return "```text\n" + strings.Trim(text, "\n") + "\n```\n\n" }
