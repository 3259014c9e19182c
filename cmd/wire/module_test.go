package wire

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestModule: control.module lies beside the fleet file, and chooses the
// estimator.
func TestModule(t *testing.T) {
	f := load(t, "control: {module: est.wasm}\n")
	if _, err := f.Control(nil); err == nil || !strings.Contains(err.Error(), "control.module") {
		t.Errorf("a missing module: %v", err)
	}
	path := filepath.Join(f.Dir, "est.wasm")
	for code, want := range map[string]string{"no module": "not a WebAssembly module", "\x00asm\x01\x00\x00\x00": ""} {
		if err := os.WriteFile(path, []byte(code), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := f.Control(nil)
		switch {
		case want == "" && (err != nil || c.Settings.Module == nil || c.Settings.Estimator != resources.Wasm):
			t.Errorf("%q: %v, %+v", code, err, c.Settings)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q", code, err, want)
		}
	}
}
