package plugins_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/wasm/guest/guesttest"
)

// TestReproducible builds a module in two folders. A signature covers bytes, so a rebuild of
// signed sources must give the same ones.
func TestReproducible(t *testing.T) {
	guesttest.SkipUnderRace(t)
	elsewhere := t.TempDir()
	root := filepath.Join("..", "..")
	for _, name := range []string{"go.mod", "go.sum"} {
		text := testkit.Must(os.ReadFile(filepath.Join(root, name)))
		testkit.NoError(t, os.WriteFile(filepath.Join(elsewhere, name), text, 0o666))
	}
	for _, dir := range []string{"policies", "wasm/abi", "wasm/guest", "wasm/plugins"} {
		testkit.NoError(t, os.CopyFS(filepath.Join(elsewhere, dir), os.DirFS(filepath.Join(root, dir))))
	}
	here, there := guesttest.Build(t, "bid-paper.go"), guesttest.Build(t, filepath.Join(elsewhere, "wasm", "plugins", "bid-paper.go"))
	if !bytes.Equal(here, there) {
		t.Errorf("%d bytes here and %d elsewhere, and they differ", len(here), len(there))
	}
}

// TestAllPluginsAreTested compares the table with the files.
func TestAllPluginsAreTested(t *testing.T) {
	known := map[string]bool{}
	for _, p := range plugins {
		known[p.name+".go"] = true
	}
	for _, file := range testkit.Must(filepath.Glob("*.go")) {
		if !known[file] && !strings.HasSuffix(file, "_test.go") {
			t.Errorf("%s is in no test", file)
		}
	}
}
