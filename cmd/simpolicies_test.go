package cmd_test

import (
	"slices"
	"strings"
	"testing"
)

// TestSimulatorRunsProductionPolicies checks that the simulator imports every policy that decides in
// production, and that production imports the same packages: neither has a copy of its own. Not in the
// simulator are links, adapters, and what guards against false reports.
func TestSimulatorRunsProductionPolicies(t *testing.T) {
	shared := []string{
		"policies/admission", "policies/balance", "policies/bidask", "policies/partition", "policies/place", "policies/planner",
	}
	isSimulator := func(path string) bool { return strings.HasPrefix(path, "engine/sim/") }
	isProduction := func(path string) bool {
		return strings.HasPrefix(path, "migrator/") || strings.HasPrefix(path, "xds/") || strings.HasPrefix(path, "cmd/internal/wiring/")
	}
	all := readSources(t)
	for _, policy := range shared {
		for place, isThere := range map[string]func(string) bool{"the simulator": isSimulator, "production": isProduction} {
			if !slices.ContainsFunc(all, func(s source) bool {
				return isThere(s.path) && !strings.HasSuffix(s.path, "_test.go") && slices.Contains(s.imports, module+policy)
			}) {
				t.Errorf("%s does not import %s", place, policy)
			}
		}
	}
	if !slices.ContainsFunc(all, func(s source) bool {
		return isSimulator(s.path) && !strings.HasSuffix(s.path, "_test.go") && slices.Contains(s.imports, module+"engine/internal/batch")
	}) {
		t.Error("the simulator does not run the emulator's scheduler")
	}
}
