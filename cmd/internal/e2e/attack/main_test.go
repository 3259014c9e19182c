package attack

import (
	"fmt"
	"os"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/daemontest"
)

// binary is the path of the command line, built once for all tests.
var binary string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "attack")
	if err == nil {
		defer os.RemoveAll(dir)
		binary, err = daemontest.Build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
