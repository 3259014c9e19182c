package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cascadeinfer/cascade/cmd/internal/policydev"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// TestPolicyScripts runs testdata/policy. The scripts have two assembled modules: bids.wasm decides
// as the built-in bid-least-load; none.wasm selects no bid and takes no configuration. $CHECKOUT is
// this checkout. The condition "guest" is false under the race detector, with which compiling a
// module in Go takes a minute; "c" is true after "make zig".
func TestPolicyScripts(t *testing.T) { runPolicyScripts(t, "testdata/policy") }

// runsReadme reports whether the commands of a README run: those that make a module in Go run for seconds, so that
// without CASCADE_TEST_ALL=1 they are checked to exist, with their flags, which fails the test otherwise.
// testdata/policy/author.txt always makes one.
func runsReadme(t *testing.T, name string, inGo bool, commands []string) bool {
	t.Helper()
	if !inGo || os.Getenv("CASCADE_TEST_ALL") != "" {
		return true
	}
	for _, line := range commands {
		if command, ok := strings.CutPrefix(line, "exec cascade "); ok {
			if why := checkCommand("cascade " + command); why != "" {
				t.Errorf("%s: cascade %s: %s", name, command, why)
			}
		}
	}
	return false
}

// TestPolicyReadmes creates a policy in Go and one in Rego, and runs the commands in their READMEs.
func TestPolicyReadmes(t *testing.T) {
	dir := t.TempDir()
	for lang, kind := range map[string]string{"go": "bid", "rego": "guard"} {
		begun := filepath.Join(dir, "my-"+kind)
		if _, err := policydev.New(policydev.NewConfig{Dir: begun, Kind: kind, Lang: lang}); err != nil {
			t.Fatal(err)
		}
		readme, err := os.ReadFile(filepath.Join(begun, "README.md"))
		testkit.NoError(t, err)
		var script strings.Builder
		if lang == "go" {
			script.WriteString("[!guest] skip\n")
		}
		fmt.Fprintf(&script, "exec cascade policy new my-%s --lang %s --kind %s --cascade $CHECKOUT\ncd my-%s\n", kind, lang, kind, kind)
		commands := readmeCommands(string(readme))
		for _, command := range commands {
			fmt.Fprintln(&script, command)
		}
		if len(commands) < 8 {
			t.Errorf("%s: %d commands", lang, len(commands))
		}
		if !runsReadme(t, "the README of a policy in "+lang, lang == "go", commands) {
			continue
		}
		testkit.NoError(t, os.WriteFile(filepath.Join(dir, lang+".txt"), []byte(script.String()), 0o666))
	}
	runPolicyScripts(t, dir)
}

// TestExampleReadmes runs the commands in the READMEs of the examples.
func TestExampleReadmes(t *testing.T) {
	dir, root := t.TempDir(), filepath.Join("..", "..")
	readmes, err := filepath.Glob(filepath.Join(root, "examples", "*", "README.md"))
	if err != nil || len(readmes) < 4 {
		t.Fatalf("%q, %v", readmes, err)
	}
	for _, readme := range readmes {
		text, err := os.ReadFile(readme)
		testkit.NoError(t, err)
		name, script := filepath.Base(filepath.Dir(readme)), ""
		sources, err := filepath.Glob(filepath.Join(filepath.Dir(readme), "*"))
		testkit.NoError(t, err)
		matched := func(pattern string) bool {
			return slices.ContainsFunc(sources, func(p string) bool { ok, _ := filepath.Match(pattern, filepath.Base(p)); return ok })
		}
		switch {
		case matched("main.go"):
			script = "[!guest] skip\n"
		case matched("src"):
			script = "[!c] skip 'there is no Zig to compile C with: make zig'\n"
		}
		commands := readmeCommands(string(text))
		if len(commands) < 4 {
			t.Errorf("%s: %d commands", name, len(commands))
		}
		if !runsReadme(t, readme, matched("main.go"), commands) {
			continue
		}
		script += "checkout\n" + strings.Join(commands, "\n") + "\n"
		testkit.NoError(t, os.WriteFile(filepath.Join(dir, name+".txt"), []byte(script), 0o666))
	}
	runPolicyScripts(t, dir)
}

// readmeCommands returns the commands in the indented lines of a text as lines of a script, with
// fewer measurements.
func readmeCommands(text string) (script []string) {
	for line := range strings.Lines(text) {
		command, indented := strings.CutPrefix(line, "    ")
		command, _, _ = strings.Cut(command, "   ") // the rest explains the command
		command, _, _ = strings.Cut(command, " #")
		command = strings.TrimSpace(command)
		rest, diff := strings.CutPrefix(command, "cascade policy diff")
		switch {
		case !indented || command == "" || strings.HasPrefix(command, "make "):
		case diff && !strings.Contains(rest, " -o "):
			script = append(script, "exitcode 1 policy diff"+rest) // they do differ
		case strings.Contains(command, "cascade policy test --bench"):
			script = append(script, "exec "+command+" --time 20ms")
		case strings.Contains(command, "cascade policy test") && !strings.Contains(command, "--build"):
			calls := "2000"
			if strings.Contains(command, "nvlink") {
				calls = "500" // of milliseconds each
			}
			script = append(script, "exec "+command+" --calls "+calls+" --random 20")
		default:
			script = append(script, "exec "+command)
		}
	}
	return script
}

// linkCheckout makes the working directory look like a new checkout: it links to the sources, and
// copies the examples without the modules built in them.
func linkCheckout(ts *testscript.TestScript, root string) {
	entries, err := os.ReadDir(root)
	ts.Check(err)
	for _, e := range entries {
		from, to := filepath.Join(root, e.Name()), ts.MkAbs(e.Name())
		switch {
		case e.Name() == "examples":
			ts.Check(os.CopyFS(to, os.DirFS(from)))
			built, err := filepath.Glob(filepath.Join(to, "*", "*.wasm"))
			ts.Check(err)
			for _, path := range built {
				ts.Check(os.Remove(path))
			}
		case e.Name() == "go.mod" || e.Name() == "go.sum":
			text, err := os.ReadFile(from)
			ts.Check(err)
			ts.Check(os.WriteFile(to, text, 0o666))
		case e.IsDir() && (e.Name() == ".cache" || e.Name()[0] != '.'):
			ts.Check(os.Symlink(from, to))
		}
	}
}

func runPolicyScripts(t *testing.T, dir string) {
	t.Parallel()
	checkout, err := filepath.Abs(filepath.Join("..", ".."))
	testkit.NoError(t, err)
	_, noGo := exec.LookPath("go")
	keep := map[string]string{"CHECKOUT": checkout}
	if noGo == nil {
		for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPROXY", "GOROOT"} {
			value, err := exec.Command("go", "env", name).Output()
			testkit.NoError(t, err)
			keep[name] = strings.TrimSpace(string(value))
		}
	}
	zig, err := filepath.Glob(filepath.Join(checkout, ".cache", "zig", "lib", "python*", "site-packages", "ziglang"))
	testkit.NoError(t, err)
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			// The program is not in the checkout, where it would find "make zig"'s itself.
			e.Setenv("PATH", strings.Join(append([]string{e.Getenv("PATH")}, zig...), string(os.PathListSeparator)))
			for name, value := range keep {
				e.Setenv(name, value)
			}
			e.Setenv("XDG_CACHE_HOME", filepath.Join(e.WorkDir, "cache"))
			e.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0")
			none := hosttest.Function("cs_bid_select_v1", nil, hosttest.Result(1, 0))
			configure := hosttest.Function("cs_configure_v1", nil, hosttest.Result(0, 0))
			for name, f := range map[string][]hosttest.Func{"bids.wasm": {hosttest.LeastLoad(), configure}, "none.wasm": {none}} {
				if err := os.WriteFile(filepath.Join(e.WorkDir, name), hosttest.Policy(f...).Encode(), 0o666); err != nil {
					return err
				}
			}
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "guest":
				return noGo == nil && !testkit.RaceEnabled, nil
			case "c":
				_, err := os.Stat(filepath.Join(checkout, ".cache", "zig", "bin", "python"))
				if err != nil && os.Getenv("CI") != "" {
					return false, errors.New("there is no Zig to compile C with: make zig")
				}
				return err == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exitcode": exitcode,
			"checkout": func(ts *testscript.TestScript, _ bool, _ []string) { linkCheckout(ts, checkout) },
		},
	})
}
