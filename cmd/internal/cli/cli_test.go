package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

func TestOnlyCanceled(t *testing.T) {
	cause := errors.New("disk full")
	for err, want := range map[error]bool{
		context.Canceled: true,
		errors.Join(context.Canceled, fmt.Errorf("run: %w", context.Canceled)): true,
		errors.Join(context.Canceled, cause):                                   false,
		cause:                                                                  false,
	} {
		if onlyCanceled(err) != want {
			t.Errorf("%q: %v", err, !want)
		}
	}
}

// exampleRun runs a command line of a program with one command, whose error is given.
func exampleRun(t *testing.T, failure error, args ...string) (code int, out string) {
	t.Helper()
	var text bytes.Buffer
	a := &App{Stdout: &text, Stderr: &text}
	root := a.NewRoot(&cobra.Command{Use: "example"}, &cobra.Command{
		Use: "serve ADDRESS", Args: ExactArgs(1), RunE: func(*cobra.Command, []string) error { return failure },
	})
	return a.Run(t.Context(), root, args), text.String()
}

// TestExitCodes checks exit codes, and that a usage error names the command to ask.
func TestExitCodes(t *testing.T) {
	for line, want := range map[string]struct {
		code int
		text string
	}{
		"":                   {0, "Usage:"},
		"serve a":            {0, ""},
		"serve":              {2, "an argument is missing: example serve ADDRESS\nRun \"example serve --help\""},
		"serve a b":          {2, `unexpected argument "b"`},
		"serv":               {2, "did you mean serve?"},
		"--nonsense":         {2, `Run "example --help"`},
		"serve a --log loud": {2, `Run "example --help"`},
		"--version":          {0, "example version " + Version},
	} {
		if code, out := exampleRun(t, nil, strings.Fields(line)...); code != want.code || !strings.Contains(out, want.text) {
			t.Errorf("%q: exit code %d: %s", line, code, out)
		}
	}
	if code, out := exampleRun(t, errors.New("disk full"), "serve", "a"); code != 1 || out != "example: disk full\n" {
		t.Errorf("exit code %d: %s", code, out)
	}
	if code, out := exampleRun(t, errors.New("disk full"), "serve", "a", "--log-format", "json"); code != 1 || !json.Valid([]byte(out)) {
		t.Errorf("exit code %d: %s", code, out)
	}
}

// TestVersion checks what "version" prints, and that the chart has the same version.
func TestVersion(t *testing.T) {
	_, out := exampleRun(t, nil, "version")
	for _, want := range []string{"example " + Version + "\n", "commit ", runtime.Version(), "policy ABI " + abi.Name} {
		if !strings.Contains(out, want) {
			t.Errorf("%q lacks %q", out, want)
		}
	}
	var b Build
	_, out = exampleRun(t, nil, "version", "--json")
	if err := json.Unmarshal([]byte(out), &b); err != nil || b.Version != Version || b.ABI != abi.Name || b.Commit == "" {
		t.Errorf("%+v, %v", b, err)
	}
	chart := string(testkit.Must(os.ReadFile(filepath.Join("..", "..", "..", "deploy", "helm", "cascade", "Chart.yaml"))))
	for _, line := range []string{"\nversion: " + Version + "\n", "\nappVersion: " + Version + "\n"} {
		if !strings.Contains(chart, line) {
			t.Errorf("the chart has no line %q", line)
		}
	}
}
