package testkit

import (
	"os"
	"os/exec"
	"testing"
)

// Unavailable is why a test cannot run on this machine, or in this run of the tests. All
// skipped tests say theirs by Skip.
type Unavailable struct {
	What   string // what is missing, as a sentence: "gcc is not installed"
	Remedy string // what makes the test run: "install gcc"
	// InCI says that continuous integration has it, so that its absence is a failure there.
	InCI bool
}

// Error implements error.
func (u Unavailable) Error() string { return u.What + "; to run this test, " + u.Remedy }

// Skip skips the test, or fails it if the environment variable CI is set and u.InCI is.
func Skip(t testing.TB, u Unavailable) {
	t.Helper()
	if u.InCI && os.Getenv("CI") != "" {
		t.Fatal(u)
	}
	t.Skip(u)
}

// Tool returns the path of a program that continuous integration has, and skips the test
// without it.
func Tool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Skip(t, Unavailable{What: name + " is not installed", Remedy: "install it", InCI: true})
	}
	return path
}

// SkipSlow skips a slow test, unless CASCADE_TEST_ALL is set.
func SkipSlow(t testing.TB) {
	t.Helper()
	if os.Getenv("CASCADE_TEST_ALL") == "" {
		Skip(t, Unavailable{What: "the test is slow", Remedy: "set CASCADE_TEST_ALL=1"})
	}
}

// SkipUnderRace skips a test that counts allocations, because the race detector
// allocates, or one that it makes too slow.
func SkipUnderRace(t testing.TB) {
	t.Helper()
	if RaceEnabled {
		Skip(t, Unavailable{What: "the race detector allocates and is slow", Remedy: "run it without -race"})
	}
}

// SkipUnlessRoot skips a test that acts as several users.
func SkipUnlessRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Skip(t, Unavailable{What: "only root can act as another user", Remedy: "run it as root"})
	}
}

// OpenFiles returns how many file descriptors this process has open.
func OpenFiles(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		Skip(t, Unavailable{What: "this system does not list the open files of a process", Remedy: "run it on Linux"})
	}
	return len(all)
}
