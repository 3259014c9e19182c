package atomicfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	for _, content := range []string{"one", "", "three"} {
		testkit.NoError(t, Write(path, []byte(content), 0o644))
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("read %q, %v; want %q", got, err, content)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v, %v; want 0644", info.Mode(), err)
	}
	if err := Write(filepath.Join(dir, "missing", "a"), nil, 0o600); err == nil {
		t.Error("Write created a directory")
	}
	// A directory cannot be replaced: the temporary file must not stay.
	testkit.NoError(t, os.Mkdir(filepath.Join(dir, "d"), 0o700))
	if err := Write(filepath.Join(dir, "d"), nil, 0o600); err == nil {
		t.Error("Write replaced a directory")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Errorf("temporary files were left: %v", entries)
	}
}

func TestReadIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	testkit.NoError(t, os.WriteFile(path, []byte("12345"), 0o600))
	if got, err := Read(path, 5); err != nil || string(got) != "12345" {
		t.Errorf("at the limit: %q, %v", got, err)
	}
	if _, err := Read(path, 4); err == nil || !strings.Contains(err.Error(), path+": larger than 4 bytes") {
		t.Errorf("above the limit: %v", err)
	}
	if _, err := Read(path+"x", 4); !os.IsNotExist(err) {
		t.Errorf("missing file: %v", err)
	}
}
