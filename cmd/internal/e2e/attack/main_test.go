package attack

import (
	"os"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/daemontest"
)

// binary is the path of the command line, built once for all tests.
var binary string

func TestMain(m *testing.M) { os.Exit(daemontest.Main(m, &binary)) }
