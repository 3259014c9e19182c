package verbs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestHeader compares the layouts of the shim with those of the library's header, if that
// is installed or was downloaded by "make rdma-check".
func TestHeader(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("there is no gcc")
		}
		t.Skip("there is no gcc")
	}
	for _, include := range []string{"/usr/include", filepath.Join("..", "..", "..", ".cache", "rdma", "root", "usr", "include")} {
		if _, err := os.Stat(filepath.Join(include, "infiniband", "verbs.h")); err != nil {
			continue
		}
		out, err := exec.CommandContext(t.Context(), gcc, "-fsyntax-only", "-Wall", "-Wno-unused", "-I.", "-isystem", include, filepath.Join("testdata", "header.c")).CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	t.Skip("infiniband/verbs.h is not installed (Debian: libibverbs-dev; make rdma-check fetches it)")
}
