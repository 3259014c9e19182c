package istio

import (
	"os"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/daemontest"
)

// cascade is the path of the command; "" if the slow tests do not run.
var cascade string

func TestMain(m *testing.M) { os.Exit(daemontest.MainOfSlowTests(m, &cascade)) }
