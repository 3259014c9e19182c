package fake

import (
	"errors"
	"os"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/device/verbs"
)

// Verbs builds the fake libibverbs.so.1 and returns its path. Without a compiler it skips
// the test, or fails it if $CI is set.
func Verbs(t testing.TB) string {
	t.Helper()
	path, err := build("libverbs/libibverbs.c", map[string]string{"abi.h": verbs.ABI})
	if errors.Is(err, errNoCompiler) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}
