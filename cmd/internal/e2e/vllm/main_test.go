package vllm

import (
	"os"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/daemontest"
)

// cascade is the path of the command, built once for all tests.
var cascade string

func TestMain(m *testing.M) {
	if os.Getenv(installation) == "" {
		os.Exit(m.Run()) // every test that needs the command is skipped
	}
	os.Exit(daemontest.Main(m, &cascade))
}
