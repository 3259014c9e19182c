package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const (
	// tail is how much of a daemon's output a failed test shows, in bytes.
	tail = 6 << 10
	// endTimeout is how long a daemon may take to end by itself. A working one, which drains
	// its streams first, takes far less on a busy host too.
	endTimeout = 3 * time.Minute
	// dumpTimeout is how long a daemon may take to write its goroutines.
	dumpTimeout = 10 * time.Second
)

// Main builds the command line, stores the binary's path in *binary, and runs the tests. It
// returns the exit code.
func Main(m interface{ Run() int }, binary *string) int {
	dir, err := os.MkdirTemp("", "harness")
	if err == nil {
		defer os.RemoveAll(dir)
		*binary, err = build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// Variable is the environment variable with the path of the command line, for a test that runs once more in namespaces
// of its own (RunIsolated).
const Variable = "CASCADE_TEST_COMMAND"

// MainOfSlowTests is Main for a package in which only slow tests run the command line, perhaps in namespaces of their
// own: it builds nothing if they do not run, or if Variable has its path.
func MainOfSlowTests(m interface{ Run() int }, binary *string) int {
	if *binary = os.Getenv(Variable); *binary != "" || os.Getenv("CASCADE_TEST_ALL") == "" {
		return m.Run()
	}
	return Main(m, binary)
}

// build puts the command line into a directory, and returns its path. "go run" keeps what it has linked
// in Go's cache, as "go build" does not: the first of several test binaries links.
func build(dir string) (string, error) {
	binary := filepath.Join(dir, "cascade")
	// It runs "cp LINKED binary".
	out, err := exec.Command("go", "run", "-ldflags=-s -w", "-exec", "cp", "github.com/cascadeinfer/cascade/cmd/cascade", binary).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go run: %w\n%s", err, out)
	}
	return binary, nil
}
