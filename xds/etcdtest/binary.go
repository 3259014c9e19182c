// Package etcdtest runs real etcd clusters in tests: members that are killed, suspended and
// started again, and links that lose what they carry.
package etcdtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/policies/testkit"
)

// Binary returns the path of etcd: $ETCD, that of "make etcd", or etcd in PATH. Without one
// it skips the test, or fails it if CI is set. It fails the test if ETCD is set but is not an
// executable file.
func Binary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("ETCD"); path != "" {
		if _, err := exec.LookPath(path); err != nil {
			t.Fatalf("etcdtest: ETCD: %v", err)
		}
		return path
	}
	for _, path := range []string{filepath.Join(root(t), ".cache", "etcd-server", "usr", "bin", "etcd"), "etcd"} {
		if found, err := exec.LookPath(path); err == nil {
			return found
		}
	}
	testkit.Skip(t, testkit.Unavailable{What: "there is no etcd", Remedy: "run `make etcd`, or set ETCD to a binary", InCI: true})
	return ""
}

// root returns the directory of the module.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil {
		if _, missing := os.Stat(filepath.Join(dir, "go.mod")); missing == nil {
			return dir
		}
		if parent := filepath.Dir(dir); parent != dir {
			dir = parent
			continue
		}
		break
	}
	t.Fatalf("etcdtest: no go.mod above the test: %v", err)
	return ""
}
