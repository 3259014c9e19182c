package testkit

import (
	"bufio"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"testing"
)

// asked is the environment variable of a child process that prints the addresses it gets.
const asked = "CASCADE_TEST_ADDRESSES"

func TestMain(m *testing.M) {
	if os.Getenv(asked) == "" {
		os.Exit(m.Run())
	}
	for _, a := range Addresses(dies{}, 3*portBlock) {
		fmt.Println(a)
	}
	fmt.Println()
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent closes it
}

// dies is the Failer of such a child process.
type dies struct{}

func (dies) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }

// TestAddresses runs several processes that each request more than a block: no two get the same
// address, although no process listens on the addresses.
func TestAddresses(t *testing.T) {
	had := map[string]int{}
	for _, a := range Addresses(t, 3*portBlock) {
		had[a]++
	}
	for range 5 {
		cmd := exec.Command(os.Args[0])
		// The race detector delays the exit of every process by a second.
		cmd.Env = append(os.Environ(), asked+"=1", "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			in.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
		lines := bufio.NewScanner(out)
		for lines.Scan() && lines.Text() != "" {
			had[lines.Text()]++
		}
	}
	if len(had) != 6*3*portBlock {
		t.Errorf("%d addresses, want %d", len(had), 6*3*portBlock)
	}
	for a, n := range had {
		if n > 1 {
			t.Errorf("%s was given %d times", a, n)
		}
	}
}
