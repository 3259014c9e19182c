package plugins_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/policies/testkit"
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
	here, there := guesttest.Build(t, "bid-paper"), guesttest.Build(t, filepath.Join(elsewhere, "wasm", "plugins", "bid-paper"))
	if !bytes.Equal(here, there) {
		t.Errorf("%d bytes here and %d elsewhere, and they differ", len(here), len(there))
	}
}

// TestAllPluginsAreTested compares the table with the folders.
func TestAllPluginsAreTested(t *testing.T) {
	dirs := testkit.Must(filepath.Glob("*/main.go"))
	known := map[string]bool{}
	for _, p := range plugins {
		known[filepath.Join(p.name, "main.go")] = true
	}
	for _, dir := range dirs {
		if !known[dir] {
			t.Errorf("%s is in no test", dir)
		}
	}
}
