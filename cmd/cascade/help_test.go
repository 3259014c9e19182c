package main

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// TestHelp checks that the help of every command is a manual with an example, and that all have --json.
func TestHelp(t *testing.T) {
	checked := 0
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			check(sub)
		}
		if c.Name() == "help" || c.Name() == "completion" || c.Parent() != nil && c.Parent().Name() == "completion" {
			return
		}
		checked++
		if c.Short == "" || !c.Runnable() || c.InheritedFlags().Lookup("json") == nil && c.HasParent() {
			t.Errorf("%s: %q, runnable %v", c.CommandPath(), c.Short, c.Runnable())
		}
		for line := range strings.Lines(c.Long) {
			if utf8.RuneCountInString(line) > 120 {
				t.Errorf("the help of %q has a line that is too long for a terminal: %s", c.CommandPath(), line)
			}
		}
		if !strings.Contains(c.Example, c.CommandPath()) && !strings.Contains(c.Long, "  "+c.Root().Name()+" ") && !c.HasSubCommands() {
			t.Errorf("the help of %q has no example", c.CommandPath())
		}
	}
	check(newRoot(&settings{}))
	if checked < 40 {
		t.Errorf("%d commands", checked)
	}
}
