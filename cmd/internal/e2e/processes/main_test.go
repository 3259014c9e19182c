package processes

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
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
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "processes")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	cascade = filepath.Join(dir, "daemon")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", cascade, "../../../cascade").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}
