package verbs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/device/fake"
)

// TestShimUnderTheAddressSanitizer builds the shim and a C program that makes every call,
// with -fsanitize=address.
func TestShimUnderTheAddressSanitizer(t *testing.T) {
	path := fake.Verbs(t)
	exe := filepath.Join(t.TempDir(), "asan")
	out, err := exec.CommandContext(t.Context(), "gcc", "-g", "-O1", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined",
		"-fno-sanitize-recover=all", "-o", exe, filepath.Join("testdata", "asan.c"), "shim.c", "-ldl", "-lpthread").CombinedOutput()
	if err != nil && strings.Contains(string(out), "libasan") && os.Getenv("CI") == "" {
		t.Skip("gcc has no address sanitizer: install libasan")
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), exe, path)
	cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0") // LeakSanitizer wants ptrace; the fake counts its handles
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "every call is clean") {
		t.Errorf("%v\n%s", err, out)
	}
}
