package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cascadeinfer/cascade/migrator/device/fake"
)

// TestDevicesScripts runs testdata/devices. $NVML is a library of four GPUs, of
// which the pairs 0 and 1, 2 and 3 are joined by NVLink.
func TestDevicesScripts(t *testing.T) {
	t.Parallel()
	lib := fake.NVML(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/devices",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0")
			e.Setenv("NVML", lib)
			e.Setenv("FAKE_NVML_GPUS", "4")
			e.Setenv("FAKE_NVML_LINKS", "direct")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exitcode": exitcode},
	})
}
