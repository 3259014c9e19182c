package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
)

// TestCommandLine checks exit codes, the version, and that errors name the command to ask.
func TestCommandLine(t *testing.T) {
	for line, want := range map[string]struct {
		code int
		text string
	}{
		"--version":  {0, "cascade-kube version " + cli.Version},
		"version":    {0, "policy ABI cascade-policy/"},
		"":           {0, "Usage:"},
		"nonsense":   {2, `unknown command "nonsense"`},
		"--nonsense": {2, `Run "cascade-kube --help"`},
	} {
		var out bytes.Buffer
		if code := run(t.Context(), strings.Fields(line), &out, &out); code != want.code || !strings.Contains(out.String(), want.text) {
			t.Errorf("%q: exit code %d: %s", line, code, out.String())
		}
	}
}
