package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cascadeinfer/cascade/cmd/policy"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// TestPolicyScripts runs testdata/policy. Its folders have two modules that are put
// together by hand, bids.wasm, which decides as the built-in bid-least-load, and
// none.wasm, which takes no bid; $CHECKOUT is this one. The condition "guest" is
// whether modules in Go are built: not under the race detector, which makes compiling
// one take a minute.
func TestPolicyScripts(t *testing.T) { runPolicyScripts(t, "testdata/policy") }

// TestPolicyReadmes begins a policy in each language whose compiler is here, and
// types what its own README says.
func TestPolicyReadmes(t *testing.T) {
	dir := t.TempDir()
	for lang, kind := range map[string]string{"go": "bid", "rego": "guard"} {
		begun := filepath.Join(dir, "my-"+kind)
		if _, err := policy.New(policy.NewConfig{Dir: begun, Kind: kind, Lang: lang}); err != nil {
			t.Fatal(err)
		}
		readme, err := os.ReadFile(filepath.Join(begun, "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		var script strings.Builder
		if lang == "go" {
			script.WriteString("[!guest] skip\n")
		}
		fmt.Fprintf(&script, "exec cascade policy new my-%s --lang %s --kind %s --cascade $CHECKOUT\ncd my-%s\n", kind, lang, kind, kind)
		commands := 0
		for line := range strings.Lines(string(readme)) {
			command, indented := strings.CutPrefix(line, "    ")
			command, _, _ = strings.Cut(command, "   ") // what follows tells what it does
			command = strings.TrimSpace(command)
			if !indented || command == "" {
				continue
			}
			commands++
			if strings.Contains(command, "cascade policy test") {
				command += " --calls 2000 --random 20" // no other than it does, but less of it
			}
			if diff, ok := strings.CutPrefix(command, "cascade policy diff"); ok {
				fmt.Fprintln(&script, "exitcode 1 policy diff"+diff) // they do differ
				continue
			}
			fmt.Fprintln(&script, "exec "+command)
		}
		if commands < 8 {
			t.Errorf("%s: %d commands", lang, commands)
		}
		if err := os.WriteFile(filepath.Join(dir, lang+".txt"), []byte(script.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	runPolicyScripts(t, dir)
}

func runPolicyScripts(t *testing.T, dir string) {
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
		Dir:                 dir,
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
