package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/console"
)

// TestConsoleCommands checks that the commands of the console's advice exist, with their flags and
// arguments, and that the table of faults in the runbook and the console have the same kinds.
func TestConsoleCommands(t *testing.T) {
	runbook := string(testkit.Must(os.ReadFile("../../deploy/runbook.md")))
	begin := strings.Index(runbook, "| FAULT kind, object |")
	if begin < 0 {
		t.Fatal("the runbook has no table of faults")
	}
	table, _, _ := strings.Cut(runbook[begin:], "\n\n")
	var kinds []string
	for line := range strings.Lines(table) {
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(first, -1) {
			kinds = append(kinds, m[1])
		}
	}
	for _, kind := range []string{"model", "replica", "capacity", "descriptors", "memory", "certificate", "refused_clients", "store", "control_plane", "no_leader", "name",
		"fleet_file", "fleet_file_differs", "removal", "rollout", "publish", "policy"} {
		if !slices.Contains(kinds, kind) {
			t.Errorf("the table of the runbook lacks %s", kind)
		}
		advice, ok := console.AdviceFor(kind)
		if !ok {
			t.Errorf("the console has no advice for %s", kind)
		}
		if advice.Command != "" {
			if why := checkCommand(advice.Command); why != "" {
				t.Errorf("%s: %q: %s", kind, advice.Command, why)
			}
		}
	}
}
