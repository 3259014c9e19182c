package fake

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// NVML builds the fake libnvidia-ml.so.1, without the given symbols, and returns its
// path. Without a compiler it skips the test, or fails it if $CI is set.
func NVML(t testing.TB, lacking ...string) string {
	t.Helper()
	var lack strings.Builder
	for _, s := range lacking {
		fmt.Fprintf(&lack, "#define %s lacking_%s\n", s, s)
	}
	path, err := build("libnvml/libnvidia-ml.c", map[string]string{"lack.h": lack.String()})
	if errors.Is(err, errNoCompiler) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}
