package istio

import (
	"os"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/daemontest"
)

// cascade is the path of the command.
var cascade string

// TestMain builds the command only where the slow tests run: there is no other one here.
func TestMain(m *testing.M) {
	if os.Getenv("CASCADE_TEST_ALL") == "" {
		os.Exit(m.Run())
	}
	os.Exit(daemontest.Main(m, &cascade))
}
