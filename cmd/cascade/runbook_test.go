package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// bookCommand matches the command lines of the runbook, in blocks and in sentences.
var bookCommand = regexp.MustCompile("(?m)(?:^|`)(cascade [a-z][^`\n]*)")

// TestRunbookCommands: the commands of the runbook exist, and have the arguments and the flags that they get there.
func TestRunbookCommands(t *testing.T) {
	book := string(testkit.Must(os.ReadFile("../../deploy/runbook.md")))
	found := 0
	for _, m := range bookCommand.FindAllStringSubmatch(book, -1) {
		found++
		if why := checkCommand(m[1]); why != "" {
			t.Errorf("%s: %s", m[1], why)
		}
	}
	if found < 60 {
		t.Errorf("found %d commands: the pattern is wrong", found)
	}
	for _, bad := range []string{"cascade statsu", "cascade status --contol x", "cascade drain --wait", "cascade config explain no.field", "cascade plan rollback --control x"} {
		if checkCommand(bad) == "" {
			t.Errorf("%s passes", bad)
		}
	}
}

// checkCommand returns why a command line cannot run; "" if it can.
func checkCommand(line string) string {
	line, _, _ = strings.Cut(line, " #")
	line, _, _ = strings.Cut(line, " | ")
	line, _, _ = strings.Cut(line, " > ")
	words := strings.Fields(regexp.MustCompile(`'[^']*'`).ReplaceAllString(line, "quoted"))
	c, rest, err := newRoot(&settings{}).Find(words[1:])
	switch {
	case err != nil:
		return err.Error()
	case c.HasSubCommands() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-"):
		return "no such command"
	}
	if err := c.ParseFlags(rest); err != nil {
		return err.Error()
	}
	args := c.Flags().Args()
	if len(rest) > 0 { // a sentence may name a command alone
		if err := c.ValidateArgs(args); err != nil {
			return err.Error()
		}
	}
	if c.CommandPath() == "cascade config explain" && len(args) > 0 {
		if _, err := config.Explain(args[0]); err != nil {
			return err.Error()
		}
	}
	return ""
}
