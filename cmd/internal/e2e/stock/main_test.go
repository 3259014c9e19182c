package stock

import (
	"os"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
)

// cascade is the path of the command, built once for all tests.
var cascade string

func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, &cascade))
}
