package wiring

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestEstimatorModule: the module of control.estimator lies beside the fleet file.
func TestEstimatorModule(t *testing.T) {
	f := load(t, "control: {estimator: est.wasm}\n")
	if _, err := f.Control(nil); err == nil || !strings.Contains(err.Error(), "control.estimator") {
		t.Errorf("a missing module: %v", err)
	}
	path := filepath.Join(f.Dir, "est.wasm")
	for code, want := range map[string]string{
		"no module": "not a WebAssembly module",
		exporting("proxy_abi_version_0_2_1", "proxy_on_request_headers"): "", exporting("_start"): "not a proxy-wasm filter",
		exporting("proxy_abi_version_0_2_0"): "does not read headers", exporting("memory", "cs_arena_v1"): "the module is a policy",
		exporting("proxy_on_request_headers")[:20]: "truncated; \"make estimator\" builds"} {
		testkit.NoError(t, os.WriteFile(path, []byte(code), 0o600))
		c, err := f.Control(nil)
		switch {
		case want == "" && (err != nil || c.Settings.Module == nil || c.Settings.Estimator != resources.Wasm):
			t.Errorf("%q: %v, %+v", code, err, c.Settings)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q", code, err, want)
		}
	}
}

// exporting is a module that exports functions, and has none.
func exporting(names ...string) string {
	section := string(rune(len(names)))
	for _, n := range names {
		section += string(rune(len(n))) + n + "\x00\x00"
	}
	custom := "\x00\x02\x01x"
	return "\x00asm\x01\x00\x00\x00" + custom + "\x07" + string(rune(len(section))) + section
}

// FuzzExports: whatever the bytes, they are read or refused.
func FuzzExports(f *testing.F) {
	f.Add([]byte(exporting("memory", "a")))
	f.Fuzz(func(t *testing.T, code []byte) {
		names, err := exportedNames(code)
		if err != nil && !errors.Is(err, errTruncated) {
			t.Error(err)
		}
		if len(names) > len(code) {
			t.Errorf("%d names of %d bytes", len(names), len(code))
		}
	})
}
