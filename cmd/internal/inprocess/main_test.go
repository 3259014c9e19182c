package inprocess

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// together is how many fleets run in parallel, on any host: they wait more than they compute.
const together = "4"

func TestMain(m *testing.M) {
	// Set it before the command line is parsed, which may override it.
	if err := flag.Set("test.parallel", together); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
