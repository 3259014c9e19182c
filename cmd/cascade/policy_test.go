package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// TestPolicyScripts runs testdata/policy. Its folders have two modules that are put
// together by hand, bids.wasm, which decides as the built-in bid-least-load, and
// none.wasm, which takes no bid; $CHECKOUT is this one. The condition "guest" is
// whether modules in Go are built: not under the race detector, which makes compiling
// one take a minute.
func TestPolicyScripts(t *testing.T) {
	checkout, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	_, noGo := exec.LookPath("go")
	keep := map[string]string{"CHECKOUT": checkout}
	if noGo == nil {
		for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPROXY", "GOROOT"} {
			value, err := exec.Command("go", "env", name).Output()
			if err != nil {
				t.Fatal(err)
			}
			keep[name] = strings.TrimSpace(string(value))
		}
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/policy",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			for name, value := range keep {
				e.Setenv(name, value)
			}
			e.Setenv("XDG_CACHE_HOME", filepath.Join(e.WorkDir, "cache"))
			e.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0")
			none := hosttest.Function("cs_bid_select_v1", nil, hosttest.Result(1, 0))
			for name, f := range map[string]hosttest.Func{"bids.wasm": hosttest.LeastLoad(), "none.wasm": none} {
				if err := os.WriteFile(filepath.Join(e.WorkDir, name), hosttest.Policy(f).Encode(), 0o666); err != nil {
					return err
				}
			}
			return nil
		},
		Condition: func(name string) (bool, error) {
			if name != "guest" {
				return false, fmt.Errorf("unknown condition %q", name)
			}
			return noGo == nil && !underRace, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exitcode": exitcode},
	})
}
