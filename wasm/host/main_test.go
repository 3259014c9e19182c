package host

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// sharedCache is the cache folder for modules that several tests load.
var sharedCache string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "host")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	sharedCache = dir
	code := m.Run()
	os.RemoveAll(dir)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
