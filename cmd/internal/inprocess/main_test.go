package inprocess

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// together is how many fleets run at a time, on whatever machine: those of
// idlePlanes wait more than they work.
const together = "2"

func TestMain(m *testing.M) {
	// Before the command line is read, which may ask for another number.
	if err := flag.Set("test.parallel", together); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
