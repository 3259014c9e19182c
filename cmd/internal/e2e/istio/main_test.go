package istio

import (
	"os"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/daemontest"
)

// cascade is the path of the command; "" if the slow tests do not run.
var cascade string

// cascadeVariable is the environment variable with the path of the command, for the test in namespaces of its own.
const cascadeVariable = "CASCADE_TEST_COMMAND"

// TestMain builds the command only where the slow tests run: there is no other one here.
func TestMain(m *testing.M) {
	if cascade = os.Getenv(cascadeVariable); cascade != "" || os.Getenv("CASCADE_TEST_ALL") == "" {
		os.Exit(m.Run())
	}
	os.Exit(daemontest.Main(m, &cascade))
}
