package processes

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
)

// everything makes the slow tests run, too.
var everything = os.Getenv("CASCADE_TEST_ALL") != ""

// cascade is the path of the command, built once for all tests.
var cascade string

// together is how many fleets run in parallel, on any host: they wait more than they compute.
const together = "6"

func TestMain(m *testing.M) {
	// Set it before the command line is parsed, which may override it.
	if err := flag.Set("test.parallel", together); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(harness.Main(m, &cascade))
}
