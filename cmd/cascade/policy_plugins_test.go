package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestSigningKey checks that runs with the same state directory have the same key, and others a key
// of their own.
func TestSigningKey(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	first, err := signingKey(dir)
	testkit.NoError(t, err)
	if again, err := signingKey(dir); err != nil || !again.Equal(first) {
		t.Errorf("the second run has another key: %v", err)
	}
	if info, err := os.Stat(filepath.Join(dir, runKeyFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if alone, err := signingKey(""); err != nil || alone.Equal(first) {
		t.Errorf("a run without state has that of others: %v", err)
	}
	testkit.NoError(t, os.WriteFile(filepath.Join(dir, runKeyFile), []byte("no key"), 0o600))
	if _, err := signingKey(dir); err == nil {
		t.Error("what is no key is taken for one")
	}
}
