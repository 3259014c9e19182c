package processes

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestHangup: SIGHUP ends no daemon, each says that it ignores it, and streams go on. The
// log lines are JSON, those of the start included.
func TestHangup(t *testing.T) {
	t.Parallel()
	f := newFleet(t, setup{replicas: 1, log: []string{"--log", "warn", "--log-format", "json"}})
	running := []*harness.Stream{f.Stream(harness.Prompt(1, 200, forever))}
	daemons := []*harness.Daemon{f.control, f.proxy, f.replicas[0].engine, f.replicas[0].migrator}
	for _, p := range daemons {
		p.Signal(syscall.SIGHUP)
		p.WaitForLog("SIGHUP ignored")
	}
	f.WaitForGrowth(running)
	testkit.NoError(t, f.Stream(harness.Prompt(2, 200, 10)).Whole())
	f.RequireTexts(running)
	for _, p := range daemons {
		for line := range strings.Lines(p.Log.String()) {
			var record struct{ Time, Level, Msg string }
			if err := json.Unmarshal([]byte(line), &record); err != nil || record.Time == "" || record.Level == "" || record.Msg == "" {
				t.Errorf("%v writes %q: %v", p.Command, line, err)
			}
		}
	}
}
