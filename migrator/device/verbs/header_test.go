package verbs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestHeader compares the layouts of the shim with those of the library's header, if that
// is installed or was downloaded by "make rdma-check".
func TestHeader(t *testing.T) {
	gcc := testkit.Tool(t, "gcc")
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
	testkit.Skip(t, testkit.Unavailable{What: "infiniband/verbs.h is not installed", Remedy: "install it (Debian: apt-get install libibverbs-dev), or run `make rdma-check`"})
}
