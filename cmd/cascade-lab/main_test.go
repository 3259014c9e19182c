package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"cascade-lab": main})
}

// TestScripts runs the scripts of testdata. $CUDA is a driver without a GPU, $STANDIN has what stands for PyTorch.
func TestScripts(t *testing.T) {
	t.Parallel()
	driver, standIn := fake.CUDA(t), testkit.Must(filepath.Abs(filepath.Join("internal", "measure", "testdata")))
	testscript.Run(t, testscript.Params{
		Dir: "testdata", RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0")
			e.Setenv("CUDA", driver)
			e.Setenv("STANDIN", standIn)
			e.Setenv("PYTHONDONTWRITEBYTECODE", "1")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exitcode": exitCode},
	})
}

// exitCode is the command "exitcode CODE ARGUMENT…": cascade-lab ends with this code.
func exitCode(ts *testscript.TestScript, _ bool, args []string) {
	code := 0
	var exit *exec.ExitError
	if err := ts.Exec("cascade-lab", args[1:]...); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("cascade-lab ends with code %d, not %s", code, args[0])
	}
}
