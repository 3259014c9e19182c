// Package etcdtest runs real etcd clusters in tests: members that are killed, suspended and
// started again, and links that lose what they carry.
package etcdtest

import (
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// Binary returns the path of etcd: $ETCD, that of "make etcd", or etcd in PATH. Without one
// it skips the test, or fails it if CI is set. It fails the test if ETCD is set but is not an
// executable file.
func Binary(t testing.TB) string {
	t.Helper()
	return testkit.Program{
		Variable: "ETCD", Cached: "etcd-server/usr/bin/etcd", Name: "etcd",
		Missing: testkit.Unavailable{What: "there is no etcd", Remedy: "run `make etcd`, or set ETCD to a binary", InCI: true},
	}.Find(t)
}
