package stock

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestRequirements: what is missing is named, and how to get it.
func TestRequirements(t *testing.T) {
	if _, u := requirements(); u != nil {
		testkit.Skip(t, *u)
	}
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	t.Setenv("HOME", bin)
	t.Setenv("PYTHON", "")
	missing := func() string {
		_, u := requirements()
		if u == nil {
			return ""
		}
		return u.Error()
	}
	for _, step := range []struct{ want, add, script string }{
		{"gcc is not installed", "gcc", ""},
		{"objdump is not installed", "objdump", ""},
		{"nm is not installed", "nm", ""},
		{"Python 3.12 with venv is not installed", "python3.12", "echo False"},
		{"Python 3.12 with venv is not installed", "python3", "echo True"},
	} {
		if got := missing(); !strings.HasPrefix(got, step.want) || !strings.Contains(got, "to run this test, ") {
			t.Errorf("before %s: %q, want %q", step.add, got, step.want)
		}
		testkit.NoError(t, os.WriteFile(filepath.Join(bin, step.add), []byte("#!/bin/sh\n"+step.script+"\n"), 0o700))
	}
	if got := missing(); got != "" {
		t.Errorf("with all of them: %q", got)
	}
}

// TestInstallation installs vLLM unless that has been done: the command and the model are there.
func TestInstallation(t *testing.T) {
	dir := installed(t)
	for _, name := range []string{"bin/vllm", "bin/python", model + "/model.safetensors"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}
