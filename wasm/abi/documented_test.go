package abi

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestKindsAreDocumented: the layout of each kind's frame stands in a comment that begins with its name.
func TestKindsAreDocumented(t *testing.T) {
	for k := range NumKinds {
		want := []byte("\n// " + Kind(k).String() + ": ")
		found := 0
		for _, file := range testkit.Must(filepath.Glob("*.go")) {
			found += bytes.Count(testkit.Must(os.ReadFile(file)), want)
		}
		if found != 1 {
			t.Errorf("%d comments begin with the kind %s", found, Kind(k))
		}
	}
}
