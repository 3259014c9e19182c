package processes

import (
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
)

const (
	patience = harness.Patience
	// tick is the time between two checks of another process, which sends no events to the test.
	tick = 20 * time.Millisecond
)

// start runs one of our command lines until the end of the test at the latest.
func start(t testing.TB, args ...string) *harness.Daemon {
	t.Helper()
	return harness.Command{Binary: cascade, Args: args}.Start(t)
}

// command runs a command line to its end and returns what it writes to standard output.
func command(t testing.TB, args ...string) string {
	t.Helper()
	return harness.Command{Binary: cascade, Args: args}.Output(t)
}
