package fake

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// NVML builds the fake libnvidia-ml.so.1 and returns its path. The library lacks
// the symbols that are named. Without a compiler the test is skipped, and fails
// where $CI is set.
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
